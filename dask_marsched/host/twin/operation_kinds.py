"""Splits tasks into operations, whose kinds and bytes tell their durations."""

from __future__ import annotations

import graphlib
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from dask._task_spec import DataNode, GraphNode, Task, _execute_subgraph
from dask.typing import Key

from dask_marsched.host.graph.array_layers import ArrayLayers, innermost, read_layers
from dask_marsched.host.graph.reduction_stages import parts, skips_nan
from dask_marsched.host.graph.size_rules import GETTERS, named

_Nodes = Mapping[Key, GraphNode]

#: Kinds by the name of the innermost function.
_BY_NAME: dict[str, str] = {
    name: kind
    for kind, names in {
        "random": "_apply_random _apply_random_func",
        "product": "_matmul matmul dot dotmany tensordot _tensordot chunk_einsum einsum "
        "_solve_triangular_lower solve_triangular",
        "qr": "_wrapped_qr qr",
        "svd": "svd",
        "cholesky": "cholesky _cholesky_lower",
        "moments": "moment_chunk var std nanvar nanstd",
        "combining": "moment_combine moment_agg",
        "reduction": "sum prod min max any all count_nonzero numel mean_chunk mean_combine "
        "mean_agg _chunk_sum chunk_min chunk_max arg_chunk arg_combine arg_agg argmin argmax",
        "nan": "nansum nanmin nanmax nanprod nannumel",
        "grouped": "chunk_reduce _simple_combine _grouped_combine _aggregate",
        "scan": "cumsum cumprod nancumsum nancumprod",
        "sort": "sort argsort unique _unique_internal percentile _percentile _block_hist "
        "histogram bincount topk",
        "fft": "fft ifft rfft irfft fft2 ifft2 fftn ifftn",
        "transcendental": "exp log log2 log10 log1p expm1 sin cos tan arctan2 hypot power pow "
        "tanh sinh cosh arcsin arccos arctan",
        "elementwise": "where clip isclose _sqrt _cumsum_merge _cumprod_merge",
        "copy": "copy concatenate concatenate3 concatenate_shaped _concatenate2 finalize "
        "vstack hstack stack block full full_like ones_like zeros_like eye diag astype "
        "ascontiguousarray _getitem append apply",
        "transpose": "transpose _conj_transpose swapaxes moveaxis",
        "view": "reshape expand_dims squeeze broadcast_to "
        "_broadcast_trick_inner _identity_cast _identity tuple list dict p2p_barrier",
    }.items()
    for name in names.split()
}


#: ``nan`` are reductions that skip NaN, ``combining`` the later stages of a variance, ``grouped``
#: flox's stages; ``slice`` indexes results in memory, ``read`` loads from a store, ``other`` is
#: everything else.
KINDS = (*dict.fromkeys(_BY_NAME.values()), "slice", "read", "other")


class TaskOperation(NamedTuple):
    """A step of a task, by its kind (one of `KINDS`) and bytes."""

    kind: str
    input_nbytes: int
    nbytes: int
    largest: tuple[int, int]  #: Bytes of its two largest inputs.
    inputs: int = 1  #: How many it has.
    #: Bytes that it is the first of the task's steps to read of other tasks' results.
    received: int = 0
    last: bool = True  #: Whether its result is the task's.


class _TaskScope(NamedTuple):
    """Nodes and bytes by name; unknown sizes count as ``whole``, that of the task's result."""

    task: Key
    whole: int
    nodes: _Nodes
    nbytes: Mapping[Key, int]
    seen: set[Key]  #: Other tasks whose results a step has read.
    #: Other tasks by the names of their results inside a fused task; None if names are keys.
    tasks: Mapping[Key, Key | None] | None = None


class TaskOperations:
    """The operations of a graph's tasks, whose results have ``nbytes``."""

    def __init__(self, expr: Any, dsk: _Nodes, nbytes: Mapping[Key, int]) -> None:
        self._layers: ArrayLayers = read_layers(expr)
        self._dsk = dsk
        self._nbytes = nbytes
        self._kinds: dict[int, tuple[Any, str]] = {}

    def of(self, key: Key) -> Iterator[TaskOperation]:
        """Yield the operations of a task."""
        scope = _TaskScope(key, self._nbytes[key], self._dsk, self._nbytes, set())
        yield from self._operations(self._dsk[key], self._nbytes[key], scope, True)

    def _operations(
        self, node: Any, size: int, scope: _TaskScope, last: bool
    ) -> Iterator[TaskOperation]:
        if not isinstance(node, Task):
            return
        if node.func is _execute_subgraph:
            inside = self._inside(node, size, scope)
            for name, part in node.args[0].items():
                yield from self._operations(
                    part, inside.nbytes[name], inside, last and name == node.args[1]
                )
            return
        inputs = sorted(scope.nbytes.get(name, scope.whole) for name in node.dependencies)
        largest = (inputs[-1] if inputs else 0, inputs[-2] if len(inputs) > 1 else 0)
        received = 0
        for name in node.dependencies:
            task = name if scope.tasks is None else scope.tasks.get(name)
            if task is not None and task not in scope.seen:
                scope.seen.add(task)
                received += scope.nbytes.get(name, scope.whole)
        kind = self._kind(node, scope)
        yield TaskOperation(kind, sum(inputs), size, largest, len(inputs), received, last)

    def _inside(self, node: Task, size: int, scope: _TaskScope) -> _TaskScope:
        """Return the scope inside of a fused task."""
        fused, last, names, *references = node.args
        nodes, nbytes, tasks = dict(fused), {}, {}
        for name, reference in zip(names, references, strict=False):
            source: Any = getattr(reference, "key", None)
            is_literal = isinstance(reference, DataNode)
            nodes[name] = reference if is_literal else scope.nodes.get(source)
            nbytes[name] = scope.nbytes.get(source, scope.whole) if source in scope.nodes else 0
            tasks[name] = source if scope.tasks is None else scope.tasks.get(source)
        nbytes[last] = size
        self._size_steps(fused, nbytes, scope)
        return _TaskScope(scope.task, scope.whole, nodes, nbytes, scope.seen, tasks)

    def _size_steps(self, steps: _Nodes, nbytes: dict[Key, int], scope: _TaskScope) -> None:
        """Add the bytes of a fused task's steps; unknown ones are those of the largest input."""
        for name in inputs_first(steps):
            step = steps[name]
            if isinstance(step, DataNode):  # a literal
                nbytes[name] = 0
            if name in nbytes:
                continue
            size = self._of_part(name, scope.task)
            if size is None:
                size = max((nbytes.get(other, 0) for other in step.dependencies), default=None)
            nbytes[name] = scope.whole if size is None else size

    def _of_part(self, name: Any, task: Key) -> int | None:
        """Return the bytes of a step's result, by its own name or by the name of its layer."""
        if type(name) is tuple and name:
            grid = self._layers.grids.get(name[0])
            return None if grid is None else grid.nbytes(name)
        # Dask marks layers that occur several times in a fused task: "add-0123..._.1_.2"
        grid = self._layers.grids.get(str(name).partition("_.")[0])
        if grid is None:
            return None
        own = grid.nbytes((name, *task[1:])) if type(task) is tuple else None
        return own if own is not None else grid.nbytes((name, *(0 for _ in grid.lengths)))

    def _kind(self, node: Task, scope: _TaskScope) -> str:
        func = node.func
        # By id, with the function: it may not be hashable, and its id must not be used again.
        if id(func) not in self._kinds:
            self._kinds[id(func)] = (func, kind_of(func))
        kind = self._kinds[id(func)][1]
        if kind == "transcendental" and _is_square(node, scope.nodes):
            return "elementwise"
        return "read" if kind == "slice" and _is_stored(node, scope.nodes) else kind


def inputs_first(dsk: _Nodes) -> list[Key]:
    """Return the keys in topological order; a cycle is a ValueError."""
    sorter = graphlib.TopologicalSorter({key: task.dependencies for key, task in dsk.items()})
    try:
        return [key for key in sorter.static_order() if key in dsk]
    except graphlib.CycleError as error:
        circle = " -> ".join(map(str, error.args[1]))
        raise ValueError(f"the graph has a cycle: {circle}") from None


def _is_square(node: Task, nodes: _Nodes) -> bool:
    """Return whether a power is a square, which NumPy and kernels compute as a product."""
    if len(node.args) < 2:
        return False
    exponent = node.args[1]
    if (key := named(exponent)) is not None:
        exponent = nodes.get(key)
    value = getattr(exponent, "value", exponent)
    return type(value) in (int, float) and value == 2


def _is_stored(node: Task, nodes: _Nodes) -> bool:
    """Return whether a getter reads from an array outside of memory."""
    source = node.args[0] if node.args else None
    for _ in range(2):
        if (key := named(source)) is not None:
            source = nodes.get(key)
    return isinstance(source, DataNode) and not isinstance(source.value, np.ndarray)


def kind_of(func: Any) -> str:
    """Return the kind of a function of chunks."""
    try:
        if func in GETTERS:
            return "slice"
    except TypeError:  # not hashable
        return "other"
    for part in reversed(list(parts(innermost(func)))):
        name = getattr(part, "__name__", "")
        if name in _BY_NAME:
            kind = _BY_NAME[name]
            return "nan" if kind == "reduction" and skips_nan(func) else kind
        if type(part) is np.ufunc or (getattr(part, "__module__", "") or "") == "_operator":
            return "elementwise"
    return "other"


def multiplications(operation: TaskOperation) -> float:
    """Return the multiplications in a product of two matrices of 8-byte numbers.

    For m x k and k x n matrices the sizes are mk, kn and mn; the root of their product is mkn.
    """
    left, right = operation.largest
    return math.sqrt(left * (right or left) * operation.nbytes) / 8**1.5
