"""Costs from the graph alone: sizes that it tells or that are guessed, durations from a model."""

from __future__ import annotations

import graphlib
import math
from collections.abc import Callable, Mapping
from typing import Any

import dask
from dask.utils import parse_bytes

from dask_marsched.host.graph.operation_kinds import Operation, Operations, multiplications
from dask_marsched.host.graph.result_sizes import chunk_nbytes
from dask_marsched.host.twin.scheduler import expression, materialize
from dask_marsched.simulation.costs.costs import Costs

#: Seconds that a task takes besides what its operations do.
OVERHEAD = 0.0002


def _bytes_in_and_out(operation: Operation) -> float:
    return operation.input_nbytes + operation.nbytes


def _bytes_in(operation: Operation) -> float:
    return operation.input_nbytes


def _bytes_out(operation: Operation) -> float:
    return operation.nbytes


def _qr_multiplications(operation: Operation) -> float:
    """Return 2 m n n, where m x n numbers come in and n x n more go out than come in."""
    extra = max(operation.nbytes - operation.input_nbytes, 8)
    return 2 * operation.input_nbytes / 8 * math.sqrt(extra / 8)


def _matrix_cubed(operation: Operation) -> float:
    """Return n n n for a square matrix of n x n numbers."""
    return float((operation.input_nbytes / 8) ** 1.5)


#: For every kind of operation what it takes time for, and how many of these a core does in a
#: second: rounded from what `benchmarks.rates` measures on 2 virtual cores. Memory that
#: is touched for the first time makes ``elementwise``, ``transcendental`` and ``copy`` vary by a
#: factor of 4 and more from run to run: for the last two the slower half counts, as workers take
#: new memory for every large result. ``elementwise`` is mostly a part of a larger task, in memory
#: used before: its rate is from the time that the threads of real workers ran. ``other`` is
#: nothing but a guess.
RATES: Mapping[str, tuple[Callable[[Operation], float], float]] = {
    "elementwise": (_bytes_in_and_out, 4e9),
    "transcendental": (_bytes_out, 1e9),
    "reduction": (_bytes_in, 1e10),
    "moments": (_bytes_in, 3e9),
    "product": (multiplications, 2e10),
    "qr": (_qr_multiplications, 3e9),
    "svd": (_matrix_cubed, 1.5e9),
    "cholesky": (_matrix_cubed, 4e10),
    "scan": (_bytes_in, 0.6e9),
    "sort": (_bytes_in, 0.5e9),
    "fft": (_bytes_in_and_out, 1.2e9),
    "random": (_bytes_out, 2e9),
    "copy": (_bytes_out, 1e9),
    "slice": (_bytes_out, 2e9),
    "view": (_bytes_out, math.inf),
    "read": (_bytes_out, 0.4e9),
    "other": (_bytes_in_and_out, 1e9),
}
#: Reductions of several inputs: `dask.array.reductions` puts these into one array first.
_CONCATENATING = ("reduction", "moments")


def seconds_of(operation: Operation) -> float:
    """Return how long an operation takes on a core of its own, in seconds."""
    amount, rate = RATES[operation.kind]
    seconds = amount(operation) / rate
    if operation.kind in _CONCATENATING and operation.largest[1]:
        seconds += operation.input_nbytes / RATES["copy"][1]
    return seconds


class DerivedSeconds:
    """Durations from the model.

    Parameters
    ----------
    expr, dsk
        The expression and its tasks.
    nbytes
        Bytes of the results of all tasks.
    """

    def __init__(self, expr: Any, dsk: Mapping[Any, Any], nbytes: Mapping[Any, int]) -> None:
        self._operations = Operations(expr, dsk, nbytes)

    def __call__(self, key: Any) -> float:
        """Return the seconds of a task."""
        return OVERHEAD + sum(map(seconds_of, self._operations.of(key)))


def inputs_first(dsk: Mapping[Any, Any]) -> list[Any]:
    """Return the keys of a graph, each after its inputs.

    Raises
    ------
    ValueError
        If the graph has a cycle.
    """
    sorter = graphlib.TopologicalSorter({key: task.dependencies for key, task in dsk.items()})
    try:
        return [key for key in sorter.static_order() if key in dsk]
    except graphlib.CycleError as error:
        circle = " -> ".join(map(str, error.args[1]))
        raise ValueError(f"the graph has a cycle: {circle}") from None


def fill_missing_sizes(
    dsk: Mapping[Any, Any], nbytes: dict[Any, int], likely: Callable[[Any], int | None]
) -> None:
    """Add the sizes that are missing.

    Parameters
    ----------
    dsk
        The tasks.
    nbytes
        Sizes by key; completed.
    likely
        Called with the key of a task whose inputs' sizes are all there: returns the likely size
        of its result, or None: then it is assumed to be the size of its largest input, or, if it
        has none, the mean of the sizes known, or what Dask assumes before it knows any.
    """
    if all(key in nbytes for key in dsk):
        return
    mean = sum(nbytes.values()) // max(1, len(nbytes))
    if not nbytes:
        mean = parse_bytes(dask.config.get("distributed.scheduler.default-data-size"))
    for key in inputs_first(dsk):
        if key not in nbytes:
            size = likely(key)
            if size is None:
                size = max((nbytes[other] for other in dsk[key].dependencies), default=mean)
            nbytes[key] = size


def derive_costs(collection: Any, guess: bool = True) -> Costs:
    """Derive the sizes of all results from the graph alone, without executing anything.

    Parameters
    ----------
    collection
        A Dask collection or a list of them.
    guess
        Where the graph does not tell, assume the size of the largest input, and for tasks without
        inputs the mean of the sizes known. Else those tasks are left out.

    Returns
    -------
    Costs
        Bytes by task; durations follow from them.
    """
    items = list(collection) if isinstance(collection, (list, tuple)) else [collection]
    expr, keys = expression(items)
    dsk, _ = materialize(expr, keys)
    known = chunk_nbytes(expr, dsk)
    nbytes = {**known.estimated, **known.exact}
    if guess:
        fill_missing_sizes(dsk, nbytes, lambda key: None)
    return Costs(nbytes)
