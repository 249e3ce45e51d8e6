"""What operands need, learned from operands of the same kind that have run."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

#: Share of an estimate that a smaller observation takes away; a larger one replaces it. To be
#: too low once costs a process its memory, to be too high a little parallelism.
_DECAY = 0.1

#: How often an operation of a size never seen is taken to need its result's or inputs' size.
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
    """What makes operands alike.

    Parameters
    ----------
    prefix
        Name of the operation, without the token of the collection.
    n_inputs
        Number of inputs.
    input_bytes
        Their size.
    """

    prefix: str
    n_inputs: int
    input_bytes: int

    @property
    def fine(self) -> Hashable:
        """Same operation, number of inputs, and size of them to within a fifth."""
        # Three bits of mantissa: chunks at the edges are of another kind than those inside.
        shift = max(self.input_bytes.bit_length() - 3, 0)
        return self.prefix, self.n_inputs, shift, self.input_bytes >> shift


class NeedModel:
    """Results and working space of operands, by kind.

    An estimate is that of the kind; else that of the operation, in proportion to the inputs;
    else a guess from the inputs.
    """

    def __init__(self) -> None:
        self._fine: dict[Hashable, _Learned] = {}
        self._coarse: dict[Hashable, _Learned] = {}

    def observe_output(self, kind: OperandKind, nbytes: int) -> None:
        """Learn from a result of `nbytes`."""
        scale = kind.input_bytes or 1
        for learned, value in ((self._of(kind), nbytes), (self._like(kind), nbytes / scale)):
            learned.output = _larger_at_once(learned.output, value)
            learned.outputs += 1

    def observe_footprint(self, kind: OperandKind, nbytes: int) -> None:
        """Learn from an operand that took `nbytes` at most at one time, its inputs apart."""
        scale = kind.input_bytes or 1
        for learned, value in ((self._of(kind), nbytes), (self._like(kind), nbytes / scale)):
            learned.footprint = _larger_at_once(learned.footprint, value)
            learned.footprints += 1

    def seen(self, kind: OperandKind) -> int:
        """Return how often the footprint of this kind was observed."""
        learned = self._fine.get(kind.fine)
        return learned.footprints if learned is not None else 0

    def is_measured(self, kind: OperandKind) -> bool:
        """Whether any footprint of this operation was observed, of whatever size."""
        return self._find(kind, "footprints") is not None

    def output(self, kind: OperandKind) -> int:
        """Return the size to expect of a result, bytes."""
        found = self._find(kind, "outputs")
        if found is not None:
            learned, scale = found
            return int(learned.output * scale)
        return kind.input_bytes

    def footprint(self, kind: OperandKind, output: int | None = None) -> int:
        """Return what to expect an operand to take, its inputs apart, bytes.

        An operation that was never seen is taken to need once more the size of its result, which
        may be given where it is known, or that of its inputs: what returns little, a reduction,
        may make much of them before.
        """
        if output is None:
            output = self.output(kind)
        found = self._find(kind, "footprints")
        if found is None:
            return 2 * max(output, kind.input_bytes)
        learned, scale = found
        expected = int(learned.footprint * scale)
        if scale > 1:
            # The least noise measured on a small operand would make a large one need gigabytes.
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
        # Without inputs there is nothing to be in proportion to.
        return kind.prefix, kind.input_bytes > 0


def _larger_at_once(estimate: float, value: float) -> float:
    return value if value >= estimate else estimate + _DECAY * (value - estimate)
