"""Predicts the memory of operands from operands of the same kind."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

#: Weight of an observation below the estimate; one above replaces it. Estimates that are too low
#: can exhaust memory, estimates that are too high only cost parallelism.
_DECAY = 0.1

#: Bytes of inputs from which on needs are in proportion to them. Less may be a number or a name
#: that says how much is made.
_PROPORTIONAL = 64 * 1024

#: Upper bound on extrapolated footprints, as a multiple of the larger of result and inputs.
_MOST_EXTRAPOLATED = 8

#: Kinds that are remembered: users may give each task a name of its own.
_MOST_KINDS = 4096


@dataclass(frozen=True, slots=True)
class OperandKind:
    """Features of operands that need about as much memory."""

    prefix: str  #: Name of the operation, without the collection's token.
    n_inputs: int
    input_bytes: int

    @property
    def fine(self) -> Hashable:
        """Operation, number of inputs, and their size to within a fifth."""
        # Three bits of mantissa separate edge chunks from inner ones.
        shift = max(self.input_bytes.bit_length() - 3, 0)
        return self.prefix, self.n_inputs, shift, self.input_bytes >> shift

    @property
    def scale(self) -> int:
        """Bytes that needs are in proportion to; 1 if to nothing."""
        return self.input_bytes if self.input_bytes >= _PROPORTIONAL else 1

    @property
    def coarse(self) -> Hashable:
        """Same operation; with little input it is separate, as nothing can be scaled."""
        return self.prefix, self.scale > 1


class _Estimates:
    """Estimates of one quantity by kind, and by operation for each byte of input."""

    def __init__(self) -> None:
        self._fine: dict[Hashable, float] = {}
        self._coarse: dict[Hashable, float] = {}

    def observe(self, kind: OperandKind, nbytes: int) -> None:
        _update(self._fine, kind.fine, nbytes)
        _update(self._coarse, kind.coarse, nbytes / kind.scale)

    def find(self, kind: OperandKind) -> tuple[float, int] | None:
        """Return an estimate and the factor to scale it by."""
        if (value := self._fine.get(kind.fine)) is not None:
            return value, 1
        if (value := self._coarse.get(kind.coarse)) is not None:
            return value, kind.scale
        return None


class NeedModel:
    """Predicts result sizes and footprints by kind, else by operation and input size."""

    def __init__(self) -> None:
        self._outputs = _Estimates()
        self._footprints = _Estimates()
        self._seen: dict[Hashable, int] = {}

    def observe_output(self, kind: OperandKind, nbytes: int) -> None:
        """Learn the size of a result."""
        self._outputs.observe(kind, nbytes)

    def observe_footprint(self, kind: OperandKind, nbytes: int) -> None:
        """Learn the peak memory of an operand, inputs excluded."""
        self._footprints.observe(kind, nbytes)
        _store(self._seen, kind.fine, self.seen(kind) + 1)

    def seen(self, kind: OperandKind) -> int:
        """Return how often a footprint of this kind was observed."""
        return self._seen.get(kind.fine, 0)

    def is_measured(self, kind: OperandKind) -> bool:
        """Whether any footprint of this operation was observed."""
        return self._footprints.find(kind) is not None

    def output(self, kind: OperandKind) -> int:
        """Return the expected size of a result in bytes."""
        found = self._outputs.find(kind)
        return kind.input_bytes if found is None else int(found[0] * found[1])

    def footprint(self, kind: OperandKind, output: int | None = None) -> int:
        """Return the expected peak memory in bytes, inputs excluded.

        An unknown operation is assumed to need twice the larger of its inputs and its result: a
        reduction with a small result may make large intermediate ones.
        """
        if output is None:
            output = self.output(kind)
        found = self._footprints.find(kind)
        if found is None:
            return 2 * max(output, kind.input_bytes)
        value, scale = found
        expected = int(value * scale)
        if scale > 1:
            # Noise measured on small operands must not scale to gigabytes.
            expected = min(expected, _MOST_EXTRAPOLATED * max(output, kind.input_bytes))
        return max(expected, output)


def _update(estimates: dict[Hashable, float], kind: Hashable, value: float) -> None:
    estimate = estimates.get(kind, 0.0)
    _store(estimates, kind, max(value, estimate + _DECAY * (value - estimate)))


def _store(table: dict[Hashable, T], kind: Hashable, value: T) -> None:
    """Store what is known of a kind; the one that was observed longest ago is forgotten."""
    table.pop(kind, None)
    table[kind] = value
    if len(table) > _MOST_KINDS:
        del table[next(iter(table))]
