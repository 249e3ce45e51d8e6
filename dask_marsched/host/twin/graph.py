"""Checks the graph of a simulation and prepares it for the scheduler."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from dask._task_spec import GraphNode
from dask.typing import Key
from dask.utils import key_split

from dask_marsched.host.graph.function_effects import called_functions, describe_effects
from dask_marsched.host.twin.shuffles import ShuffleTasks, read_shuffles

Annotations = dict[str, dict[Key, Any]]


@dataclasses.dataclass(frozen=True)
class TwinGraph:
    """A graph, ready to be submitted."""

    dsk: Mapping[Key, GraphNode]
    keys: set[Key]  #: Wanted by the client.
    annotations: Annotations  #: By kind and key.
    order: dict[Key, int]  #: Positions in the scheduler's order.
    #: Numbers of the workers that hold each result that is on the cluster already.
    held: Mapping[Key, tuple[int, ...]]
    shuffles: ShuffleTasks
    not_simulated: tuple[str, ...]  #: Features of the graph that the simulation ignores.


def read_graph(
    expr: Any,
    dsk: Mapping[Key, GraphNode],
    keys: set[Any],
    annotations: Mapping[str, Mapping[Key, Any]],
    general: Mapping[str, Any],
    places: Collection[Any],
    resources: Mapping[str, float],
    held: Mapping[Key, tuple[int, ...]],
    order_of: Callable[[Mapping[Key, GraphNode]], dict[Key, int]],
) -> TwinGraph:
    """Check a graph, the tasks ``dsk`` of an expression, and list what in it is not simulated.

    ``general`` are the annotations of tasks without their own, ``places`` the workers' names,
    addresses and hosts. ``order_of`` returns the scheduler's order; a cycle is a ValueError.
    """
    try:
        order = order_of(dsk)
    except RuntimeError as error:
        raise ValueError(f"the graph cannot be computed: {error}") from None
    own: Annotations = {name: dict(values) for name, values in annotations.items()}
    for name, value in general.items():
        values = own.setdefault(name, {})
        for key in dsk:
            values.setdefault(key, value(key) if callable(value) else value)
    shuffles = read_shuffles(expr, dsk)
    not_simulated = [
        *shuffles.unknown,
        *_uneven(shuffles),
        *_side_effects(dsk),
        *drop_unsatisfiable(own, places, resources),
    ]
    found = tuple(dict.fromkeys(not_simulated))
    return TwinGraph(dsk, keys, own, order, held, shuffles, found)


def check_keys(dsk: Mapping[Key, GraphNode], keys: set[Any], held: Collection[Key] = ()) -> None:
    """Check that a graph has, or ``held`` has, all keys that are needed; else raise ValueError."""
    there = dsk.keys() | set(held) if held else dsk.keys()
    for key in keys:
        if key not in there:
            raise ValueError(f"the graph does not contain {key!r}, which is to be computed")
    for key, node in dsk.items():
        if not node.dependencies <= there:
            missing = next(other for other in node.dependencies if other not in there)
            raise ValueError(f"the graph does not contain {missing!r}, which {key!r} needs")


def _uneven(shuffles: ShuffleTasks) -> Iterator[str]:
    if any(shuffle.even for shuffle in shuffles.barriers.values()):
        yield (
            "sizes of the output partitions of a P2P shuffle of a dataframe, which depend on its "
            "values: rows are spread evenly"
        )


def _side_effects(dsk: Mapping[Key, GraphNode]) -> Iterator[str]:
    """Yield the side effects of tasks, as far as the code of their functions shows them."""
    found: Counter[str] = Counter()
    known: dict[int, tuple[str, ...]] = {}
    examples: dict[str, Key] = {}
    for key, node in dsk.items():
        for function in called_functions(node):
            if id(function) not in known:
                known[id(function)] = tuple(sorted(set(describe_effects(function))))
            for what in known[id(function)]:
                found[what] += 1
                examples.setdefault(what, key)
    for what, count in sorted(found.items()):
        yield f"{what} ({count} tasks, such as {key_split(examples[what])!r})"


def drop_unsatisfiable(
    annotations: Annotations, places: Collection[Any], resources: Mapping[str, float]
) -> Iterator[str]:
    """Remove annotations that no worker satisfies, and yield descriptions of them.

    On a cluster such tasks would wait for ever; in the simulation they run anywhere.
    """
    for name in ("workers", "restrictions"):
        wanted = annotations.get(name, {})
        for key, value in list(wanted.items()):
            if not any(place in places for place in _several(value)):
                del wanted[key]
                yield f"the restriction of {key_split(key)!r} to {value!r}: there is no such worker"
    wanted = annotations.get("resources", {})
    for key, needs in list(wanted.items()):
        if any(resources.get(kind, 0) < amount for kind, amount in needs.items()):
            del wanted[key]
            yield f"the resources {needs!r} of {key_split(key)!r}: no worker has them"
    others = {value for value in annotations.get("executor", {}).values() if value != "default"}
    for executor in sorted(map(str, others)):
        yield f"the executor {executor!r}: tasks run in the worker's threads"


def _several(value: Any) -> Collection[Any]:
    return value if isinstance(value, (list, tuple, set)) else [value]
