"""Derives durations of tasks from the graph, and guesses the sizes that it does not tell."""

from __future__ import annotations

import graphlib
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import dask
from dask.utils import parse_bytes

from dask_marsched.host.graph.operation_kinds import TaskOperation, multiplications

#: Seconds that each task takes besides its operations, and each operation besides its amount.
OVERHEAD, OPERATION = 0.0002, 0.00003


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


class Rate(NamedTuple):
    """How fast a core is at a kind of operation.

    It is faster with the plugin: tasks are joined and expressions evaluated in one pass, so that
    intermediate results stay in the caches, and arrays are made in memory that was used before.
    """

    amount: Callable[[TaskOperation], float]  #: What its time grows with: bytes, multiplications.
    stock: float  #: How much of that a core does in a second under stock Dask.
    plugin: float


#: Fitted to recordings of 22 workloads of `benchmarks` on 2 virtual cores, and rounded.
#: ``transcendental``, ``svd``, ``cholesky``, ``fft`` and ``read`` are from `benchmarks.rates`, as
#: few or none were recorded. ``other`` is any function, and lower than recorded.
RATES: Mapping[str, Rate] = {
    "elementwise": Rate(_bytes_in_and_out, 8e9, 15e9),
    "transcendental": Rate(_bytes_out, 1e9, 1e9),
    "reduction": Rate(_bytes_in, 6e9, 8e9),
    "moments": Rate(_bytes_in, 1e9, 5e9),
    "product": Rate(multiplications, 20e9, 25e9),
    "qr": Rate(_qr_multiplications, 2.5e9, 2.5e9),
    "svd": Rate(_matrix_cubed, 1.5e9, 1.5e9),
    "cholesky": Rate(_matrix_cubed, 40e9, 40e9),
    "scan": Rate(_bytes_in, 1e9, 1e9),
    "sort": Rate(_bytes_in, 0.5e9, 0.5e9),
    "fft": Rate(_bytes_in_and_out, 1.2e9, 1.2e9),
    "random": Rate(_bytes_out, 2e9, 2.2e9),
    "copy": Rate(_bytes_out, 4e9, 6e9),
    "slice": Rate(_bytes_out, 10e9, 10e9),
    "view": Rate(_bytes_out, math.inf, math.inf),
    "read": Rate(_bytes_out, 0.4e9, 0.4e9),
    "other": Rate(_bytes_in_and_out, 2e9, 3e9),
}
#: `dask.array.reductions` concatenates several inputs of these first; kernels do not.
_CONCATENATING = ("reduction", "moments")


def seconds_of(operation: TaskOperation, *, plugin: bool = False) -> float:
    """Return how long an operation takes on a core of its own, in seconds."""
    rate = RATES[operation.kind]
    seconds = rate.amount(operation) / (rate.plugin if plugin else rate.stock)
    if operation.kind in _CONCATENATING and operation.largest[1] and not plugin:
        seconds += operation.input_nbytes / RATES["copy"].stock
    return seconds


def derived_seconds(operations: Iterable[TaskOperation], *, plugin: bool = False) -> float:
    """Return how long a task takes, derived from its operations, in seconds."""
    return OVERHEAD + sum(OPERATION + seconds_of(one, plugin=plugin) for one in operations)


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
