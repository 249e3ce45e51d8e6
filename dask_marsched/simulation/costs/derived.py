"""Derives durations of tasks from the graph, and guesses the sizes that it does not tell."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import dask
from dask.utils import parse_bytes

from dask_marsched.host.twin.operation_kinds import TaskOperation, inputs_first, multiplications

#: Seconds that each task takes besides its operations, and each operation besides its amount.
OVERHEAD, OPERATION = 0.0001, 0.00007

_bytes_in, _bytes_out = operator.attrgetter("input_nbytes"), operator.attrgetter("nbytes")


def _bytes_in_and_out(operation: TaskOperation) -> float:
    return operation.input_nbytes + operation.nbytes


def _bytes_reduced(operation: TaskOperation) -> float:
    """Return bytes read and twice those written: memory that is new takes longer."""
    return _bytes_concatenated(operation) + 2 * operation.nbytes


def _bytes_concatenated(operation: TaskOperation) -> float:
    """Return the bytes of all inputs as one array; a count that is stored once is written out."""
    if operation.inputs > 1:
        return max(operation.input_nbytes, operation.inputs * operation.nbytes)
    return operation.input_nbytes


def _bytes_copied(operation: TaskOperation) -> float:
    """Return the bytes of a slice if it is copied: Dask does so if it keeps less than half."""
    return operation.nbytes if 2 * operation.nbytes <= operation.input_nbytes else 0


def _qr_multiplications(operation: TaskOperation) -> float:
    """Return 2 m n n for an input of m x n numbers; n x n more go out than come in."""
    extra = max(operation.nbytes - operation.input_nbytes, 8)
    return 2 * operation.input_nbytes / 8 * math.sqrt(extra / 8)


def _matrix_cubed(operation: TaskOperation) -> float:
    """Return n n n for a square matrix of n x n numbers."""
    return float((operation.input_nbytes / 8) ** 1.5)


class Rate(NamedTuple):
    """How fast a core is at a kind of operation; `seconds_of` adds what is not in proportion."""

    amount: Callable[[TaskOperation], float]  #: Bytes or products: time grows with it.
    stock: float  #: How much of that a core does in a second under stock Dask.
    plugin: float


#: Fitted to recordings of 22 workloads of `benchmarks` on 2 virtual cores, and rounded.
#: ``transcendental``, ``svd``, ``cholesky``, ``fft`` and ``read`` are from `benchmarks.rates`, as
#: few or none were recorded. ``other`` is any function.
RATES: Mapping[str, Rate] = {
    "elementwise": Rate(_bytes_in_and_out, 9e9, 45e9),
    "transcendental": Rate(_bytes_out, 1e9, 1e9),
    "reduction": Rate(_bytes_reduced, 5e9, 45e9),
    "nan": Rate(_bytes_reduced, 3.7e9, 7e9),
    "moments": Rate(_bytes_reduced, 2.3e9, 9e9),
    "combining": Rate(_bytes_reduced, 1e9, 20e9),
    "grouped": Rate(_bytes_in_and_out, 0.65e9, 0.85e9),
    "product": Rate(multiplications, 48e9, 52e9),
    "qr": Rate(_qr_multiplications, 1.45e9, 1.45e9),
    "svd": Rate(_matrix_cubed, 1.5e9, 1.5e9),
    "cholesky": Rate(_matrix_cubed, 40e9, 40e9),
    "scan": Rate(_bytes_in, 1.2e9, 1.3e9),
    "sort": Rate(_bytes_in, 0.45e9, 0.45e9),
    "fft": Rate(_bytes_in_and_out, 1.2e9, 1.2e9),
    "random": Rate(_bytes_out, 1.8e9, 1.8e9),
    "copy": Rate(_bytes_out, 2.9e9, 3e9),
    "slice": Rate(_bytes_copied, 1.5e9, 2e9),
    "transpose": Rate(_bytes_out, 1.4e9, 1.4e9),
    "view": Rate(_bytes_out, math.inf, math.inf),
    "read": Rate(_bytes_out, 0.4e9, 0.4e9),
    "other": Rate(_bytes_in_and_out, 2.7e9, 3e9),
}
#: Kinds that kernels evaluate in one pass: they read what comes from other tasks, write the task's
#: result, and keep the rest in the caches.
FUSED = frozenset({"elementwise", "transcendental", "reduction", "nan", "moments", "combining"})
#: Bytes that such a pass reads and writes in a second.
TRAFFIC = 7.5e9
#: `dask.array.reductions` puts several inputs of these into one array first; kernels do not.
_CONCATENATED = frozenset({"reduction", "nan", "moments", "combining"})
#: Bytes of that array that are made in a second, and bytes of the result of a product.
CONCATENATION, _PRODUCTS = 6e9, 1.1e9


def seconds_of(operation: TaskOperation, *, plugin: bool = False) -> float:
    """Return how long an operation takes on a core of its own, in seconds."""
    kind = operation.kind
    rate = RATES[kind]
    seconds = rate.amount(operation) / (rate.plugin if plugin else rate.stock)
    if kind == "product":
        return seconds + operation.nbytes / _PRODUCTS
    if kind not in FUSED:
        return seconds
    if plugin:
        made = operation.nbytes if operation.last else 0
        return seconds + (operation.received + made) / TRAFFIC
    if operation.inputs > 1 and kind in _CONCATENATED:
        seconds += _bytes_concatenated(operation) / CONCATENATION
    return seconds


def derived_seconds(operations: Iterable[TaskOperation], *, plugin: bool = False) -> float:
    """Return how long a task takes, derived from its operations, in seconds."""
    return OVERHEAD + sum(OPERATION + seconds_of(one, plugin=plugin) for one in operations)


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
