"""Derives durations of tasks from the graph, and guesses the sizes that it does not tell."""

from __future__ import annotations

import graphlib
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import dask
from dask.utils import parse_bytes

from dask_marsched.host.graph.operation_kinds import TaskOperation, multiplications

#: Seconds that a task takes besides its operations.
OVERHEAD = 0.0002


_bytes_in, _bytes_out = operator.attrgetter("input_nbytes"), operator.attrgetter("nbytes")


def _bytes_in_and_out(operation: TaskOperation) -> float:
    return operation.input_nbytes + operation.nbytes


def _qr_multiplications(operation: TaskOperation) -> float:
    """Return 2 m n n for an input of m x n numbers; n x n more go out than come in."""
    extra = max(operation.nbytes - operation.input_nbytes, 8)
    return 2 * operation.input_nbytes / 8 * math.sqrt(extra / 8)


def _matrix_cubed(operation: TaskOperation) -> float:
    """Return n n n for a square matrix of n x n numbers."""
    return float((operation.input_nbytes / 8) ** 1.5)


#: For each kind of operation the amount that its time grows with, and how much of it a core does in
#: a second: rounded from `benchmarks.rates` on 2 virtual cores. First touches of memory make
#: ``elementwise``, ``transcendental`` and ``copy`` vary by a factor of 4: for the last two the
#: slower half counts, since workers take new memory for every large result. ``elementwise`` is
#: mostly part of a larger task, in memory used before: its rate is from threads of real workers.
#: ``other`` is a guess.
RATES: Mapping[str, tuple[Callable[[TaskOperation], float], float]] = {
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
#: `dask.array.reductions` concatenates several inputs of these first.
_CONCATENATING = ("reduction", "moments")


def seconds_of(operation: TaskOperation) -> float:
    """Return how long an operation takes on a core of its own, in seconds."""
    amount, rate = RATES[operation.kind]
    seconds = amount(operation) / rate
    if operation.kind in _CONCATENATING and operation.largest[1]:
        seconds += operation.input_nbytes / RATES["copy"][1]
    return seconds


def derived_seconds(operations: Iterable[TaskOperation]) -> float:
    """Return how long a task takes, derived from its operations, in seconds."""
    return OVERHEAD + sum(map(seconds_of, operations))


def inputs_first(dsk: Mapping[Any, Any]) -> list[Any]:
    """Return the keys in topological order; a cycle is a ValueError."""
    sorter = graphlib.TopologicalSorter({key: task.dependencies for key, task in dsk.items()})
    try:
        return [key for key in sorter.static_order() if key in dsk]
    except graphlib.CycleError as error:
        circle = " -> ".join(map(str, error.args[1]))
        raise ValueError(f"the graph has a cycle: {circle}") from None


def fill_missing_sizes(
    dsk: Mapping[Any, Any], nbytes: dict[Any, int], likely: Callable[[Any], int | None]
) -> None:
    """Add the missing sizes to ``nbytes``, from ``likely(key)`` once all inputs' sizes are known.

    If that is None, the size of the largest input is taken; without inputs, the mean of the known
    sizes, or Dask's default if none is known.
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
