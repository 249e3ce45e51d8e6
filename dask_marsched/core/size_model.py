"""Predicts sizes of results from results of the same kind."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

#: Kinds of an operand, the finest first; the last is the name of its group.
Kinds = Sequence[Hashable]


def kinds(
    group: str, n_inputs: int, n_dependents: int, index: Sequence[object]
) -> tuple[Hashable, ...]:
    """Return the kinds, the finest first; sizes alternate with parity in sliced graphs."""
    parity = tuple(i & 1 for i in index if isinstance(i, int))
    return ((group, n_inputs, n_dependents, parity), (group, n_inputs), group)


def with_averages(nbytes: list[float]) -> tuple[list[float], bytes]:
    """Return sizes with the mean of the known ones for those below 0, and a 1 for each known."""
    known = bytes([size >= 0 for size in nbytes])
    if 0 in known:
        found = [size for size in nbytes if size >= 0]
        mean = sum(found) / len(found) if found else 1.0
        nbytes = [mean if size < 0 else size for size in nbytes]
    return nbytes, known


class SizeModel:
    """Mean size in bytes of the results of each kind."""

    def __init__(self) -> None:
        self._sums: dict[Hashable, dict[Hashable, tuple[float, int]]] = {}

    def observe(self, operand_kinds: Kinds, nbytes: float) -> bool:
        """Learn from a result of `nbytes`; return whether its finest kind is new."""
        sums = self._sums.setdefault(operand_kinds[-1], {})
        new = operand_kinds[0] not in sums
        for kind in operand_kinds:
            total, count = sums.get(kind, (0.0, 0))
            sums[kind] = (total + nbytes, count + 1)
        return new

    def predict(self, operand_kinds: Kinds) -> float | None:
        """Return the mean size of the finest known kind, or None."""
        sums = self._sums.get(operand_kinds[-1], {})
        for kind in operand_kinds:
            known = sums.get(kind)
            if known is not None:
                return known[0] / known[1]
        return None

    def __contains__(self, group: str) -> bool:
        """Whether a result of this group was observed."""
        return group in self._sums

    def forget(self, group: str) -> None:
        """Drop a group."""
        self._sums.pop(group, None)
