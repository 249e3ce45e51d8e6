"""Derives the size of a single task's result from the task, if its layer does not give it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

import numpy as np
from dask._task_spec import (
    Alias,
    DataNode,
    Dict,
    GraphNode,
    List,
    Task,
    TaskRef,
    _execute_subgraph,
    _identity_cast,
)
from dask.array.chunk import getitem
from dask.array.core import finalize
from dask.typing import Key
from dask.utils import apply

from dask_marsched.core.chunk_sizes import Grid
from dask_marsched.host.graph.array_layers import ArrayLayers, allocates
from dask_marsched.host.graph.size_rules import (
    GETTERS,
    RULES,
    ChunkInfo,
    broadcast,
    literal,
    merge,
    named,
    sliced,
    transpose,
)

#: These stages of a P2P shuffle return the number of the run, a small positive integer.
_P2P_STAGES = frozenset({("distributed", "rechunk_transfer"), ("distributed", "p2p_barrier")})
#: A getter whose index Dask wraps in a pair.
_GETITEM_OF_PAIR = ("dask", "_getitem")
_INT_NBYTES = sys.getsizeof(1)
_NONE_NBYTES = sys.getsizeof(None)
_MERGES = frozenset({"_cumsum_merge", "_cumprod_merge", "add", "mul"})
#: Longest chain of references that is followed.
_MAX_DEPTH = 50

_Nodes = Mapping[Key, GraphNode]


class TaskSizes:
    """Describes the results of the tasks of a graph, given its array layers."""

    def __init__(self, dsk: _Nodes, layers: ArrayLayers) -> None:
        self._dsk = dsk
        self._grids = layers.grids
        self._kinds = layers.kinds
        self._views = layers.views
        self._known: dict[Key, ChunkInfo | None] = {}

    def of_key(self, key: Key) -> ChunkInfo | None:
        """Return the description of a task's result; None if nothing is known."""
        return self._of_task(key, {}, 0)

    def _of_reference(self, key: Key, inner: _Nodes, depth: int) -> ChunkInfo | None:
        # Dask merges slices inside of fused tasks: an inner getter no longer returns the chunk of
        # the layer that it is named after.
        rewritten = key in inner and (isinstance(inner[key], Alias) or _is_getter(inner[key]))
        known = None if rewritten else self._certain(key)
        return known or self._of_task(key, inner, depth)

    def _of_task(self, key: Key, inner: _Nodes, depth: int) -> ChunkInfo | None:
        if key in inner:
            return self._of_node(inner[key], key, inner, depth + 1)
        if key in self._known:
            return self._known[key]
        node = self._dsk.get(key)
        if node is None:
            return None
        chunk = self._of_node(node, key, {}, depth + 1)
        if chunk is not None or not depth:  # a shorter chain of references may do
            self._known[key] = chunk
        return chunk

    def _of_node(self, node: Any, key: Key, inner: _Nodes, depth: int) -> ChunkInfo | None:
        if depth > _MAX_DEPTH:
            return None
        if isinstance(node, DataNode):
            return literal(node.value)
        chunk = None
        if isinstance(node, Alias):
            if node.target != key:
                chunk = self._of_reference(node.target, inner, depth)
        elif isinstance(node, Task):
            chunk = self._of_call(node, key, inner, depth)
        if chunk is not None and chunk.certain:
            return chunk
        guess = None if key in inner else self._of_layer(key)
        return chunk if guess is None else guess._replace(certain=False)

    def _of_call(self, node: Task, key: Key, inner: _Nodes, depth: int) -> ChunkInfo | None:
        func, args = node.func, node.args
        if func is _execute_subgraph:
            return self._fused(args, key, depth)
        called = _called(func)
        if _is_getter(node) or called == _GETITEM_OF_PAIR:
            return self._indexed(node, key, inner, depth)
        if called in _P2P_STAGES:
            return ChunkInfo(_INT_NBYTES, True)
        rule = RULES.get(called)
        if rule is not None:
            chunks = [self._of_argument(arg, inner, depth) for arg in _flat(args)]
            return rule(*chunks, **node.kwargs) if None not in chunks else None
        if func is np.broadcast_to:
            source = self._of_argument(args[0], inner, depth)
            return None if source is None else broadcast(source, _value(args[1]))
        if func is finalize:
            return self._finalized(args[0], inner, depth)
        return self._of_other(node, key, inner, depth)

    def _of_other(self, node: Task, key: Key, inner: _Nodes, depth: int) -> ChunkInfo | None:
        """Describe the results of functions that need their layer or a single argument."""
        func, args = node.func, node.args
        name = getattr(func, "__name__", "")
        if _called(func)[0] not in ("dask", "operator", "_operator"):
            name = ""  # a user's function may have the same name
        if name == "_identity" and len(args) == 1:
            return self._of_argument(args[0], inner, depth)
        grid = self._grid(key)
        if name in _MERGES and (grid is None or grid.shape(key) is None):  # type: ignore[arg-type]  # of an array
            # A running total has the shape of the slice that is added to it, which avoids
            # following the chain of totals.
            own = [arg for arg in args if type(arg) is Task] or args
            return merge([self._of_argument(arg, inner, depth) for arg in own])
        if name == "load_store_chunk" and not node.kwargs.get("return_stored"):
            return ChunkInfo(_NONE_NBYTES, True)
        if func is apply and args[0] is np.full_like and isinstance(args[2], Dict):
            shape = tuple(_value(args[2]["shape"]))
            dtype = np.dtype(args[1][2])
            nbytes = prod(shape) * dtype.itemsize
            return ChunkInfo(nbytes, not dtype.hasobject, shape, dtype.itemsize, False, dtype.kind)
        if grid is None or not grid.certain:
            return None
        if func is np.transpose and args:
            source = self._of_argument(args[0], inner, depth)
            return None if source is None else transpose(source, grid.shape(key))  # type: ignore[arg-type]  # of an array
        return self._of_layer(key) if allocates(func) else None

    def _fused(self, args: tuple[Any, ...], key: Key, depth: int) -> ChunkInfo | None:
        nodes, out = args[0], args[1]
        # The last part of fused blockwise layers has the layer's name without an index.
        own = key if type(key) is tuple and key and key[0] == out else out
        if out in nodes and own != out:
            return self._of_node(nodes[out], own, nodes, depth + 1)
        return self._certain(out) or self._of_task(out, nodes, depth)

    def _of_argument(self, arg: Any, inner: _Nodes, depth: int) -> ChunkInfo | None:
        key = named(arg)
        if key is not None:
            return self._of_reference(key, inner, depth)
        if isinstance(arg, GraphNode):
            return self._of_node(arg, arg.key, inner, depth + 1)
        return None

    def _indexed(self, node: Task, key: Key, inner: _Nodes, depth: int) -> ChunkInfo | None:
        func = node.func
        source = self._of_argument(node.args[0], inner, depth)
        if source is None:
            return None
        index = self._literal(node.args[1], inner)
        if _called(func) == _GETITEM_OF_PAIR:
            func, index = getitem, index[1]
        grid = self._grid(key)
        if grid is not None and not grid.lengths and source.shape and _selects_one(index):
            scalar = self._of_layer(key)
            sized = source.certain and source.kind not in "USV"
            return None if scalar is None else scalar._replace(certain=sized)
        chunk = sliced(func, source, index)
        asarray = node.args[2] if len(node.args) > 2 else node.kwargs.get("asarray")
        if chunk is not None and source.stored and asarray is False:
            return chunk._replace(certain=False)
        return chunk

    def _literal(self, arg: Any, inner: _Nodes) -> Any:
        """Return the value of an argument or, for a reference, of the node that it names."""
        if isinstance(arg, TaskRef):
            return _value(inner.get(arg.key) or self._dsk.get(arg.key))
        return _value(arg)

    def _finalized(self, parts: Any, inner: _Nodes, depth: int) -> ChunkInfo | None:
        keys = list(_references(parts))
        if len(keys) == 1:
            chunk = self._of_reference(keys[0], inner, depth)
            if chunk is None or not chunk.shape:
                return chunk
            return ChunkInfo(prod(chunk.shape) * chunk.itemsize, chunk.certain)
        grid = self._grid(keys[0]) if keys else None
        if grid is None or grid.overhead or len(keys) != prod(map(len, grid.lengths)):
            return None
        return ChunkInfo(grid.whole(), grid.certain)

    def _grid(self, key: Key) -> Grid | None:
        if type(key) is tuple and key and isinstance(key[0], str):
            return self._grids.get(key[0])
        return None

    def _certain(self, key: Any) -> ChunkInfo | None:
        """Describe a chunk whose layer alone tells its size."""
        chunk = self._of_layer(key)
        return chunk if chunk is not None and chunk.certain and key[0] not in self._views else None

    def _of_layer(self, key: Any) -> ChunkInfo | None:
        grid = self._grid(key)
        nbytes = None if grid is None else grid.nbytes(key)
        if grid is None or nbytes is None:
            return None
        # A dict of several arrays has no shape.
        shape = grid.shape(key) if not grid.overhead else None
        kind = self._kinds.get(key[0], "")
        return ChunkInfo(nbytes, grid.certain, shape, grid.itemsize, grid.uniform, kind)


def _called(func: Any) -> tuple[str, str]:
    """Return a function's library and name."""
    module = getattr(func, "__module__", None) or ""
    return module.partition(".")[0], getattr(func, "__name__", "")


def _is_getter(node: Any) -> bool:
    try:
        return isinstance(node, Task) and node.func in GETTERS
    except TypeError:
        return False


def _value(arg: Any) -> Any:
    return arg.value if isinstance(arg, DataNode) else arg


def _selects_one(index: Any) -> bool:
    """Return whether an index consists of integers only."""
    entries = index if isinstance(index, tuple) else (index,)
    return all(hasattr(entry, "__index__") and not hasattr(entry, "shape") for entry in entries)


def _flat(args: Any) -> Iterator[Any]:
    """Yield arguments; tuples and lists are flattened."""
    for arg in args:
        if isinstance(arg, List | list | tuple):
            yield from _flat(arg)
        elif isinstance(arg, Task) and arg.func in (tuple, list, _identity_cast):
            yield from _flat(arg.args)
        else:
            yield arg


def _references(parts: Any) -> Iterator[Key]:
    """Yield the keys in nested lists of references."""
    yield from (key for part in _flat((parts,)) if (key := named(part)) is not None)
