"""Checks that all contracts in `host` share.

A contract is a function ``misfits``: it lists the names, parameters and handlers of Dask or
distributed that this package touches and that are not as it expects.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

import distributed


def misfits_of_attributes(label: str, owner: Any, names: Iterable[str]) -> list[str]:
    """Return a message for each attribute that is missing."""
    return [f"{label} has no attribute {name}" for name in names if not hasattr(owner, name)]


def misfits_of_function(
    label: str, owner: Any, name: str, parameters: Iterable[str] = ()
) -> list[str]:
    """Return a message for each parameter that ``owner.name`` does not take."""
    function = getattr(owner, name, None)
    if not callable(function):
        return [f"{label}.{name} is missing"]
    there = inspect.signature(function).parameters
    return [f"{label}.{name} takes no {p!r}" for p in parameters if p not in there]


def misfits_of_handler(scheduler: Any, table: str, operation: str, method: str) -> list[str]:
    """Return a message if a scheduler's handler of an operation is not the expected method.

    Parameters
    ----------
    scheduler
        A `distributed.Scheduler`.
    table
        Name of its table of handlers: ``handlers`` or ``stream_handlers``.
    operation
        Key in the table, such as ``"add-keys"``.
    method
        Name of the method that should be there.
    """
    handler = getattr(scheduler, table, {}).get(operation)
    if getattr(handler, "__name__", None) == method:
        return []
    kind = table.removesuffix("s").replace("_", " ")
    return [f"the {kind} {operation!r} is not Scheduler.{method}"]


def explain(found: list[str], so: str) -> str:
    """Return one sentence that lists misfits and says what follows from them."""
    return (
        f"distributed {distributed.__version__} is not as dask_marsched expects it "
        f"({'; '.join(found)}): {so}"
    )


def demand(found: list[str], so: str) -> None:
    """Raise an error if there are misfits.

    Raises
    ------
    RuntimeError
        With the text of `explain`.
    """
    if found:
        raise RuntimeError(explain(found, so))
