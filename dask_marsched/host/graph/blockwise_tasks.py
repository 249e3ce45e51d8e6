"""Makes the tasks of blockwise layers in half of Dask's time, equal to Dask's own.

Dask substitutes the inputs of each task one by one, and makes a task for each. Here the inputs of
a task are put in their places at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from dask import blockwise
from dask._task_spec import DataNode, GraphNode, Task, TaskRef, parse_input
from dask.array.core import concatenate_axes
from dask.typing import Key

from dask_marsched.host.contract import misfits_of_function
from dask_marsched.host.graph.task_order import caught
from dask_marsched.host.replacements import Replacements

#: Returns an argument of a task, given the coordinates of its inputs.
_Argument = Callable[[tuple[Any, ...]], Any]

_PARAMETERS = (
    "task", "output", "out_indices", "arrind_pairs", "numblocks", "concatenate", "new_axes",
    "output_blocks", "dims", "io_deps", "keys",
)  # fmt: skip

_stock: Any = None


def misfits() -> list[str]:
    """Return what is not as expected in Dask."""
    label = "dask.blockwise"
    found = misfits_of_function(label, blockwise, "_make_blockwise_graph", _PARAMETERS)
    mapped = ("dims", "out_indices", "numblocks", "argpairs", "concatenate")
    found += misfits_of_function(label, blockwise, "_get_coord_mapping", mapped)
    return found + misfits_of_function(
        label, blockwise, "_lol_product", ("head", "values", "as_taskref")
    )


def install(undo: Replacements) -> None:
    """Have all blockwise layers of this process made here, if Dask is as expected."""
    global _stock
    if not misfits():
        _stock = undo.attribute(blockwise, "_make_blockwise_graph", _make_blockwise_graph)


def _make_blockwise_graph(
    task: Any, output: Any, out_indices: Any, *arrind_pairs: Any, **options: Any
) -> dict[Key, GraphNode]:
    """Replace `dask.blockwise._make_blockwise_graph`."""
    given = options.get("dims") is not None and options.get("keys") is not None
    if given and _is_plain(task):
        try:
            return _tasks(task, output, out_indices, arrind_pairs, **options)
        except Exception as error:
            caught("blockwise layer", error)
    made: dict[Key, GraphNode] = _stock(task, output, out_indices, *arrind_pairs, **options)
    return made


def _is_plain(task: Any) -> bool:
    """Whether a task's inputs are arguments of its own, not parts of arguments."""
    return type(task) is Task and not any(
        (isinstance(value, TaskRef) and type(value) is not TaskRef)
        or (isinstance(value, GraphNode) and value.dependencies)
        for value in (*task.args, *task.kwargs.values())
    )


def _tasks(
    task: Task,
    output: str,
    out_indices: Sequence[Hashable],
    arrind_pairs: Sequence[Any],
    *,
    dims: Mapping[Hashable, int],
    keys: Sequence[Key],
    numblocks: Mapping[Any, Any],
    concatenate: Any = None,
    output_blocks: Any = None,
    io_deps: Mapping[Any, Any] | None = None,
    new_axes: Any = None,  # in `dims` already
) -> dict[Key, GraphNode]:
    pairs = list(zip(arrind_pairs[::2], arrind_pairs[1::2], strict=True))
    if concatenate is True:
        concatenate = concatenate_axes
    maps, axes, dummies = blockwise._get_coord_mapping(
        dims, out_indices, numblocks, pairs, concatenate
    )
    inputs = {
        key: _input(key, source, index, places, along, len(out_indices), concatenate, io_deps or {})
        for key, (source, index), places, along in zip(keys, pairs, maps, axes, strict=True)
    }
    numbered, fill = _template(list(enumerate(task.args)), inputs)
    kwargs, fill_kwargs = _template(list(task.kwargs.items()), inputs)
    args = list(numbered.values())
    func, producer = task.func, task.data_producer
    made: dict[Key, GraphNode] = {}
    for block in output_blocks or itertools.product(*[range(dims[i]) for i in out_indices]):
        coords = block + dummies
        for place, argument in fill:
            args[place] = argument(coords)
        for name, argument in fill_kwargs:
            kwargs[name] = argument(coords)
        key = (output, *block)
        made[key] = Task(key, func, *args, _data_producer=producer, **kwargs)
    return made


def _template(
    named: Sequence[tuple[Any, Any]], inputs: Mapping[Key, Any]
) -> tuple[dict[Any, Any], list[tuple[Any, _Argument]]]:
    """Return arguments by name with those that are the same for all tasks, and the others."""
    found, fill = dict(named), []
    for name, value in named:
        if type(value) is TaskRef and value.key in inputs:
            own = inputs[value.key]
            if isinstance(own, GraphNode | TaskRef):
                found[name] = own
            else:
                fill.append((name, own))
    return found, fill


def _input(
    key: Key,
    source: Any,
    index: Sequence[Hashable] | None,
    places: list[int] | None,
    axes: Sequence[int] | None,
    width: int,
    concatenate: Any,
    io_deps: Mapping[Any, Any],
) -> Any:
    """Return the argument for one input if all tasks have the same, else an `_Argument`."""
    if index is None or places is None:
        constant = isinstance(source, GraphNode | TaskRef)
        return _put(key, source if constant else DataNode(None, source))

    def at(coords: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple([coords[place] for place in places])

    def generated(coords: tuple[Any, ...]) -> Any:
        # no tasks' results: each block is told what is at its coordinates
        block = at(coords)
        value = parse_input(io_deps[source].get(block, block))
        return _put(key, value if isinstance(value, GraphNode) else DataNode(None, value))

    def joined(coords: tuple[Any, ...]) -> Any:
        # all blocks along an axis that the result has not
        blocks = blockwise._lol_product((source,), at(coords), as_taskref=True)
        return _put(key, Task(key, concatenate, blocks, axes) if concatenate else blocks)

    if source in io_deps:
        return generated
    if axes:
        return joined
    if places == list(range(width)):
        return lambda coords, head=(source,): TaskRef(head + coords[:width])
    return lambda coords: TaskRef((source, *[coords[place] for place in places]))


def _put(key: Key, value: Any) -> Any:
    return TaskRef(key).substitute({key: value})
