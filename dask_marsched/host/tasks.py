"""What a single task returns, read off the task where no layer of its graph tells it."""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any, NamedTuple

import numpy as np
from dask._task_spec import Alias, DataNode, GraphNode, List, Task, TaskRef, _execute_subgraph
from dask.array.chunk import getitem
from dask.array.core import finalize, getter, getter_inline, getter_nofancy
from dask.sizeof import sizeof
from dask.typing import Key
from distributed.shuffle._core import p2p_barrier
from distributed.shuffle._rechunk import rechunk_transfer

from dask_marsched.core.chunk_sizes import Grid, Shape, sliced_shape
from dask_marsched.host.layers import ArrayLayers, allocates

_GETTERS = frozenset({getitem, getter, getter_inline, getter_nofancy, operator.getitem})
#: They hand on the number of the run, a small positive integer.
_P2P_STAGES = frozenset({rechunk_transfer, p2p_barrier})
_INT_NBYTES = sys.getsizeof(1)
_MERGES = frozenset({"_cumsum_merge", "_cumprod_merge"})
#: Types whose size is the same wherever they are measured.
_PLAIN = (np.ndarray, int, float, complex, bool, str, bytes, type(None), np.generic)
#: References are followed so far; what lies behind a longer chain is left open.
_MAX_DEPTH = 50

_Nodes = Mapping[Key, GraphNode]


class Chunk(NamedTuple):
    """What is known of a result.

    Attributes
    ----------
    nbytes
        Bytes that it holds.
    certain
        False if the size is an educated guess.
    shape
        None if it is not an array of known shape.
    itemsize
        Bytes of an element.
    repeated
        True if it is a single element, repeated by strides of zero; None if only some of its
        strides are zero, so that the size of a view of it depends on which.
    """

    nbytes: int
    certain: bool
    shape: Shape | None = None
    itemsize: int = 0
    repeated: bool | None = False


class TaskSizes:
    """Sizes of the results of the tasks of a graph.

    Parameters
    ----------
    dsk : mapping of Key to GraphNode
        The tasks.
    layers : ArrayLayers
        What is known of the arrays that their chunks belong to.
    """

    def __init__(self, dsk: _Nodes, layers: ArrayLayers) -> None:
        self._dsk = dsk
        self._grids = layers.grids
        self._views = layers.views
        self._known: dict[Key, Chunk | None] = {}

    def of_key(self, key: Key) -> Chunk | None:
        """Return what is known of a task's result; None if nothing is."""
        return self._of_task(key, {}, 0)

    def _of_reference(self, key: Key, inner: _Nodes, depth: int) -> Chunk | None:
        grid = self._grid(key)
        if grid is not None and key[0] not in self._views:  # type: ignore[index]
            chunk = _of_grid(grid, key)
            if chunk is not None:
                return chunk
        return self._of_task(key, inner, depth)

    def _of_task(self, key: Key, inner: _Nodes, depth: int) -> Chunk | None:
        if key in inner:
            return self._of_node(inner[key], key, inner, depth + 1)
        if key in self._known:
            return self._known[key]
        node = self._dsk.get(key)
        if node is None:
            return None
        chunk = self._of_node(node, key, {}, depth + 1)
        self._known[key] = chunk
        return chunk

    def _of_node(self, node: Any, key: Key, inner: _Nodes, depth: int) -> Chunk | None:
        if depth > _MAX_DEPTH:
            return None
        if isinstance(node, DataNode):
            return _literal(node.value)
        chunk = None
        if isinstance(node, Alias):
            if node.target != key:
                chunk = self._of_reference(node.target, inner, depth)
        elif isinstance(node, Task):
            chunk = self._of_call(node, key, inner, depth)
        if chunk is not None and chunk.certain:
            return chunk
        grid = self._grid(key)
        guess = None if grid is None else _of_grid(grid, key)
        return chunk if guess is None else guess._replace(certain=False)

    def _of_call(self, node: Task, key: Key, inner: _Nodes, depth: int) -> Chunk | None:
        func, args = node.func, node.args
        if func is _execute_subgraph:
            return self._of_reference(args[1], args[0], depth)
        try:
            if func in _GETTERS:
                return self._sliced(func, args, inner, depth)
            if func in _P2P_STAGES:
                return Chunk(_INT_NBYTES, True)
        except TypeError:  # a function that cannot be hashed
            return None
        if func is np.broadcast_to:
            return self._broadcast(args, inner, depth)
        if func is finalize:
            return self._finalized(args[0], inner, depth)
        name = getattr(func, "__name__", "")
        if name == "_identity" and len(args) == 1:
            return self._of_argument(args[0], inner, depth)
        if name in _MERGES:
            chunks = [self._of_argument(arg, inner, depth) for arg in args if type(arg) is Task]
            known = [chunk for chunk in chunks if chunk is not None]
            return known[0]._replace(certain=False) if known else None
        grid = self._grid(key)
        if grid is not None and grid.certain and allocates(func):
            return _of_grid(grid, key)
        return None

    def _of_argument(self, arg: Any, inner: _Nodes, depth: int) -> Chunk | None:
        if isinstance(arg, TaskRef):
            return self._of_reference(arg.key, inner, depth)
        if isinstance(arg, Alias):
            return self._of_reference(arg.target, inner, depth)
        if isinstance(arg, GraphNode):
            return self._of_node(arg, arg.key, inner, depth + 1)
        return None

    def _sliced(
        self, func: Any, args: tuple[Any, ...], inner: _Nodes, depth: int
    ) -> Chunk | None:
        source = self._of_argument(args[0], inner, depth)
        if source is None or source.shape is None:
            return None
        index = args[1].value if isinstance(args[1], DataNode) else args[1]
        shape = sliced_shape(source.shape, index)
        if not shape:  # not understood, or a scalar
            return None
        elements = prod(shape)
        full = Chunk(elements * source.itemsize, source.certain, shape, source.itemsize)
        if source.repeated is False:
            return full
        if func is getitem and prod(source.shape) >= 2 * elements:
            return full  # Dask copies what is less than half of its base.
        if type(index) is tuple and any(isinstance(entry, list) for entry in index):
            return full
        if source.repeated is None:
            return full._replace(certain=False, repeated=None)
        return full._replace(nbytes=min(elements, 1) * source.itemsize, repeated=True)

    def _broadcast(self, args: tuple[Any, ...], inner: _Nodes, depth: int) -> Chunk | None:
        source = self._of_argument(args[0], inner, depth)
        shape = args[1].value if isinstance(args[1], DataNode) else args[1]
        if source is None or source.shape is None or not isinstance(shape, tuple):
            return None
        alone = source.repeated or set(source.shape) <= {1}
        nbytes = source.nbytes if prod(shape) else 0
        return Chunk(nbytes, source.certain, shape, source.itemsize, True if alone else None)

    def _finalized(self, parts: Any, inner: _Nodes, depth: int) -> Chunk | None:
        keys = list(_references(parts))
        if len(keys) == 1:
            chunk = self._of_reference(keys[0], inner, depth)
            if chunk is None or not chunk.shape:
                return chunk
            return Chunk(prod(chunk.shape) * chunk.itemsize, chunk.certain)
        grid = self._grid(keys[0]) if keys else None
        if grid is None or len(keys) != prod(map(len, grid.lengths)):
            return None
        return Chunk(grid.whole(), grid.certain)

    def _grid(self, key: Key) -> Grid | None:
        if type(key) is tuple and key and isinstance(key[0], str):
            return self._grids.get(key[0])
        return None


def _of_grid(grid: Grid, key: Any) -> Chunk | None:
    nbytes = grid.nbytes(key)
    if nbytes is None:
        return None
    # Several arrays in a dict are no array of this shape.
    shape = grid.shape(key) if not grid.overhead else None
    return Chunk(nbytes, grid.certain, shape, grid.itemsize, grid.uniform)


def _literal(value: Any) -> Chunk:
    certain = isinstance(value, _PLAIN)
    if not isinstance(value, np.ndarray):
        return Chunk(sizeof(value), certain)
    nbytes = sizeof(value)
    repeated = None if 0 in value.strides else False
    return Chunk(nbytes, not value.dtype.hasobject, value.shape, value.itemsize, repeated)


def _references(parts: Any) -> Iterator[Key]:
    """Yield the keys in nested lists of references."""
    if isinstance(parts, TaskRef):
        yield parts.key
    elif isinstance(parts, Alias):
        yield parts.target
    elif isinstance(parts, List | list | tuple):
        for part in parts:
            yield from _references(part)
