"""Counts the tasks without inputs that each task depends on, for `dask.order`.

Dask makes a set of them for each task, and of most sets it uses no more than the length.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import dask.order
from dask.typing import Key

from dask_marsched.host.contract import misfits_of_function
from dask_marsched.host.graph.order_dependencies import Dependencies
from dask_marsched.host.replacements import Replacements

_Edges = Mapping[Key, Any]

_NAME = "_connecting_to_roots"
#: With more roots Dask's sets are smaller than masks with a bit for each root.
_MOST_ROOTS = 4096

_stock: Any = None


def misfits() -> list[str]:
    """Return what is not as expected in Dask."""
    found = misfits_of_function("dask.order", dask.order, _NAME, ("dependencies", "dependents"))
    try:
        source = inspect.getsource(dask.order.order)
    except OSError as error:
        return [*found, f"dask.order.order: {error}"]
    if source.count("roots_connected[") != source.count("len(roots_connected["):
        found.append("dask.order.order uses more than the length of a set of roots")
    return found


def install(undo: Replacements) -> None:
    """Replace Dask's function in this process, if it is used as expected."""
    global _stock
    if not misfits():
        _stock = undo.attribute(dask.order, _NAME, connecting_to_roots)


def connecting_to_roots(dependencies: _Edges, dependents: _Edges) -> tuple[Any, dict[Key, int]]:
    """Replace `dask.order._connecting_to_roots`.

    Returns for each task a collection as long as the set of its roots, empty for a root itself, and
    the most dependents that any of these has. In the other direction, where roots are the results,
    Dask also looks into the sets: these are its own unless there is a single result.
    """
    roots = [key for key, own in dependencies.items() if not own]
    if len(roots) == 1:
        (root,) = roots
        found = dict.fromkeys(dependencies, frozenset(roots))
        found[root] = frozenset()
        return found, dict.fromkeys(dependencies, len(dependents[root]))
    if len(roots) > _MOST_ROOTS or not isinstance(dependencies, Dependencies):
        stock: tuple[Any, dict[Key, int]] = _stock(dependencies, dependents)
        return stock
    return _counted(roots, dependencies, dependents)


def _counted(
    roots: list[Key], dependencies: _Edges, dependents: _Edges
) -> tuple[dict[Key, Any], dict[Key, int]]:
    masks = {root: 1 << n for n, root in enumerate(roots)}
    most = {root: len(dependents[root]) for root in roots}
    needed = {key: len(own) for key, own in dependencies.items() if own}
    ready = roots.copy()
    while ready:
        key = ready.pop()
        if key not in masks:
            mask = largest = 0
            for other in dependencies[key]:
                mask |= masks[other]
                if most[other] > largest:
                    largest = most[other]
            masks[key], most[key] = mask, largest
        for other in dependents[key]:
            needed[other] -= 1
            if not needed[other]:
                ready.append(other)
    counts: dict[Key, Any] = {key: range(mask.bit_count()) for key, mask in masks.items()}
    counts.update(dict.fromkeys(roots, ()))
    return counts, most
