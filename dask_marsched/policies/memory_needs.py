"""Predicts the memory of operands from operands of the same kind."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

#: Weight of an observation below the estimate; one above replaces it. Estimates that are too low
#: can exhaust memory, estimates that are too high only cost parallelism.
_DECAY = 0.1

#: Upper bound on extrapolated footprints, as a multiple of the larger of result and inputs.
_MOST_EXTRAPOLATED = 8


@dataclass(slots=True)
class _Learned:
    """Bytes learned of one kind."""

    output: float = 0.0
    footprint: float = 0.0
    outputs: int = 0
    footprints: int = 0


@dataclass(frozen=True, slots=True)
class OperandKind:
    """Features of operands that need about as much memory.

    Parameters
    ----------
    prefix
        Name of the operation, without the collection's token.
    n_inputs
        Number of inputs.
    input_bytes
        Their total size.
    """

    prefix: str
    n_inputs: int
    input_bytes: int

    @property
    def fine(self) -> Hashable:
        """Operation, number of inputs, and their size to within a fifth."""
        # Three bits of mantissa separate edge chunks from inner ones.
        shift = max(self.input_bytes.bit_length() - 3, 0)
        return self.prefix, self.n_inputs, shift, self.input_bytes >> shift


class NeedModel:
    """Predicts result sizes and footprints by kind, else by operation and input size."""

    def __init__(self) -> None:
        self._fine: dict[Hashable, _Learned] = {}
        self._coarse: dict[Hashable, _Learned] = {}

    def observe_output(self, kind: OperandKind, nbytes: int) -> None:
        """Learn the size of a result."""
        scale = kind.input_bytes or 1
        for learned, value in ((self._of(kind), nbytes), (self._like(kind), nbytes / scale)):
            learned.output = _larger_at_once(learned.output, value)
            learned.outputs += 1

    def observe_footprint(self, kind: OperandKind, nbytes: int) -> None:
        """Learn the peak memory of an operand, inputs excluded."""
        scale = kind.input_bytes or 1
        for learned, value in ((self._of(kind), nbytes), (self._like(kind), nbytes / scale)):
            learned.footprint = _larger_at_once(learned.footprint, value)
            learned.footprints += 1

    def seen(self, kind: OperandKind) -> int:
        """Return how often a footprint of this kind was observed."""
        learned = self._fine.get(kind.fine)
        return learned.footprints if learned is not None else 0

    def is_measured(self, kind: OperandKind) -> bool:
        """Whether any footprint of this operation was observed."""
        return self._find(kind, "footprints") is not None

    def output(self, kind: OperandKind) -> int:
        """Return the expected size of a result in bytes."""
        found = self._find(kind, "outputs")
        if found is not None:
            learned, scale = found
            return int(learned.output * scale)
        return kind.input_bytes

    def footprint(self, kind: OperandKind, output: int | None = None) -> int:
        """Return the expected peak memory in bytes, inputs excluded.

        An unknown operation is assumed to need twice the larger of its inputs and its result, whose
        size may be given: a reduction with a small result may make large intermediate ones.
        """
        if output is None:
            output = self.output(kind)
        found = self._find(kind, "footprints")
        if found is None:
            return 2 * max(output, kind.input_bytes)
        learned, scale = found
        expected = int(learned.footprint * scale)
        if scale > 1:
            # Noise measured on small operands must not scale to gigabytes.
            expected = min(expected, _MOST_EXTRAPOLATED * max(output, kind.input_bytes))
        return max(expected, output)

    def _find(self, kind: OperandKind, count: str) -> tuple[_Learned, int] | None:
        learned = self._fine.get(kind.fine)
        if learned is not None and getattr(learned, count):
            return learned, 1
        learned = self._coarse.get(self._name(kind))
        if learned is not None and getattr(learned, count):
            return learned, kind.input_bytes or 1
        return None

    def _of(self, kind: OperandKind) -> _Learned:
        return self._fine.setdefault(kind.fine, _Learned())

    def _like(self, kind: OperandKind) -> _Learned:
        return self._coarse.setdefault(self._name(kind), _Learned())

    @staticmethod
    def _name(kind: OperandKind) -> Hashable:
        # Without inputs nothing can be scaled.
        return kind.prefix, kind.input_bytes > 0


def _larger_at_once(estimate: float, value: float) -> float:
    return value if value >= estimate else estimate + _DECAY * (value - estimate)
