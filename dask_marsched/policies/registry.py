"""Registers policies by kind and name.

To add one to this package, write its class in the module of its kind and enter it in `_registry`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any, TypeVar

#: The options that name a policy.
_SETTINGS = {kind: f"marsched.{kind}.policy" for kind in ("assignment", "ordering")}

#: Classes by kind and name. Those of this package are given by their names: they are imported on
#: first use, as all processes that read the options check names, and few make plans.
_registry: dict[str, dict[str, type | str]] = {
    "assignment": {"bfs": "BreadthFirst", "dfs": "DepthFirst", "units": "BoundedUnits"},
    "ordering": {"dask": "DaskOrder", "mars": "MarsOrder"},
    "placement": {"most-bytes": "MostBytes"},
    "withholding": {"units": "UnitQueues"},
}
KINDS = tuple(_registry)

PolicyT = TypeVar("PolicyT", bound=type)


def register(kind: str) -> Callable[[PolicyT], PolicyT]:
    """Class decorator that registers a policy under its ``name``.

    Parameters
    ----------
    kind
        One of ``assignment``, ``ordering``, ``placement``, ``withholding``.

    Raises
    ------
    ValueError
        `kind` is none of these.
    TypeError
        The class has no ``name``.
    """
    table = _table(kind)

    def decorate(cls: PolicyT) -> PolicyT:
        name = getattr(cls, "name", None)
        if not isinstance(name, str) or not name:
            raise TypeError(
                f"policy class {cls.__name__} needs a class attribute `name`, a non-empty str"
            )
        table[name] = cls
        return cls

    return decorate


def names(kind: str) -> tuple[str, ...]:
    """Return the names of the registered policies of a kind, sorted."""
    return tuple(sorted(_table(kind)))


def create(kind: str, name: str) -> Any:
    """Return a new policy; a ValueError for an unknown kind or name lists the registered ones."""
    table = _table(kind)
    known = names(kind)
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(
            f"{_SETTINGS.get(kind, kind)}: unknown policy {name!r}; "
            f"accepted are {', '.join(map(repr, known))}.{hint}"
        )
    cls = table[name]
    if isinstance(cls, type):
        return cls()
    from dask_marsched.policies import assignment, ordering, placement, unit_queues

    module = dict(zip(KINDS, (assignment, ordering, placement, unit_queues), strict=True))[kind]
    return getattr(module, cls)()


def _table(kind: str) -> dict[str, type | str]:
    try:
        return _registry[kind]
    except KeyError:
        raise ValueError(
            f"unknown kind of policy {kind!r}; accepted are {', '.join(map(repr, KINDS))}"
        ) from None
