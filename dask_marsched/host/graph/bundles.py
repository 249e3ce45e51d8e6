"""Bundles tasks with small results, so that one task makes them and one message carries them."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from dask._task_spec import GraphNode, Task, TaskRef, _identity_cast
from dask.typing import Key
from dask.utils import key_split

from dask_marsched.host.graph.array_layers import innermost
from dask_marsched.host.graph.function_effects import called_functions
from dask_marsched.host.graph.result_sizes import ChunkSizes

#: Modules whose functions hardly ever fail because of values, as those of linear algebra do.
_SAFE = frozenset({
    "_operator", "dask.array.chunk", "dask.array.core", "dask.array.overlap",
    "dask.array.reductions", "numpy", "operator",
})  # fmt: skip


def bundled(
    dsk: Mapping[Key, GraphNode], groups: Iterable[Sequence[Key]], sizes: ChunkSizes
) -> tuple[dict[Key, GraphNode], dict[Key, list[Key]]]:
    """Replace groups of tasks by bundles and picks; return also the tasks that each replaces.

    A single task reads each member of a group. Bundles and picks get names of their own, since a
    key means the same result in every graph. Their sizes are added to ``sizes``.
    """
    stand_for: dict[Key, list[Key]] = {}
    made: dict[Key, GraphNode] = {}
    picked: dict[Key, Key] = {}
    for keys in groups:
        name = hashlib.sha256(repr(keys).encode()).hexdigest()[:32]
        layer = f"{key_split(keys[0])}-bundle"
        bundle: Key = (f"{layer}-{_layers(keys)}", name)
        made[bundle] = Task(bundle, _identity_cast, *(dsk[key] for key in keys), typ=tuple)
        stand_for[bundle] = list(keys)
        nbytes = 0
        for place, key in enumerate(keys):
            pick: Key = (f"{layer}-pick-{_layers(keys)}", name, place)
            made[pick] = Task(pick, operator.getitem, TaskRef(bundle), place)
            own = sizes.exact.get(key, sizes.estimated.get(key, 0))
            sizes.estimated[pick] = own
            nbytes += own
            picked[key] = pick
            stand_for[pick] = [key]
        sizes.estimated[bundle] = nbytes
    left = {key: node for key, node in dsk.items() if key not in picked}
    for key, node in left.items():
        own_picks: dict[Key, Any] = {n: picked[n] for n in node.dependencies if n in picked}
        if own_picks:
            left[key] = node.substitute(own_picks)
    return left | made, stand_for


def is_safe(node: Any) -> bool:
    """Whether a task is of a kind that hardly ever fails: it selects, copies, computes, reduces."""
    if not isinstance(node, Task):
        return False
    functions = map(innermost, called_functions(node))
    return all(
        isinstance(function, np.ufunc) or getattr(function, "__module__", None) in _SAFE
        for function in functions
    )


def bundled_in(node: Any) -> list[Key]:
    """Return the keys of the tasks that a bundle makes, none for another task."""
    if not isinstance(node, Task) or node.func is not _identity_cast:
        return []
    if not isinstance(node.key, tuple) or "-bundle-" not in str(node.key[0]):
        return []
    return [task.key for task in node.args if isinstance(task, Task)]


def _layers(keys: Sequence[Key]) -> str:
    names = {str(key[0] if isinstance(key, tuple) else key) for key in keys}
    return hashlib.sha256(repr(sorted(names)).encode()).hexdigest()[:32]
