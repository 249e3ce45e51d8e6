"""Holds the checks that all contracts in `host` share.

A contract is a function ``misfits``: it lists the attributes and functions of Dask and distributed
that this package uses and that are missing or different.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterable, Mapping
from typing import Any, Protocol, TypeVar

import distributed

logger = logging.getLogger("dask_marsched")


class NotApplicable(RuntimeError):
    """A feature has nothing to do on a server that is set up in this way. Not an error."""


class Part(Protocol):
    """Replaces something in distributed; `install` raises a RuntimeError if that does not fit."""

    def install(self) -> None:
        """Replace it."""


P = TypeVar("P", bound=Part)


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


def misfits_of_paths(
    root: Any, attributes: Mapping[str, Iterable[str]], functions: Mapping[str, Iterable[str]]
) -> list[str]:
    """Return the misfits of attributes, by their owner's path, and of functions, by their own.

    A path begins with a name for ``root``, for example ``worker.state``.
    """
    found: list[str] = []
    for path, names in attributes.items():
        found += misfits_of_attributes(path, _find(root, path), names)
    for path, parameters in functions.items():
        owner, _, name = path.rpartition(".")
        found += misfits_of_function(owner, _find(root, owner), name, parameters)
    return found


def _find(root: Any, path: str) -> Any:
    for name in path.split(".")[1:]:
        root = getattr(root, name, None)
    return root


def misfits_of_handler(scheduler: Any, table: str, operation: str, method: str) -> list[str]:
    """Return a message if a handler in ``handlers`` or ``stream_handlers`` is not as expected."""
    handler = getattr(scheduler, table, {}).get(operation)
    if getattr(handler, "__name__", None) == method:
        return []
    kind = table.removesuffix("s").replace("_", " ")
    return [f"the {kind} {operation!r} is not Scheduler.{method}"]


def explain(found: list[str], consequence: str) -> str:
    """Return one sentence that lists misfits and their consequence."""
    return (
        f"distributed {distributed.__version__} is not as dask_marsched expects it "
        f"({'; '.join(found)}): {consequence}"
    )


def demand(found: list[str], consequence: str) -> None:
    """Raise a RuntimeError with the text of `explain` if there are misfits."""
    if found:
        raise RuntimeError(explain(found, consequence))


def installed(part: P) -> P | None:
    """Install a part; return it, or None if it has nothing to do or (with a warning) misfits."""
    try:
        part.install()
    except NotApplicable:
        return None
    except RuntimeError as misfit:
        logger.warning("%s", misfit)
        return None
    return part
