"""What running operands take, told by the high-water mark of their process."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from dask_marsched.policies.memory_needs import OperandKind

#: The process is taken to grow by what an operand needs, divided by this. As much for each,
#: whatever its size, would hide what large ones take behind many small ones.
_GROWTH = 1000


@dataclass(frozen=True, slots=True)
class KnownMemory:
    """Bytes of a process that are not what operands make.

    Parameters
    ----------
    held
        Results in memory.
    transfers
        Transfers under way that are none.
    surplus
        What the kernel counts beyond these: pages of shared memory.
    inputs
        Inputs of running operands that are read from disk.
    """

    held: int = 0
    transfers: int = 0
    surplus: int = 0
    inputs: int = 0


@dataclass(slots=True)
class _Running:
    kind: OperandKind
    expected: int
    most: int = 0


class Footprints:
    """Shares what a process took in each lap among the operands that ran in it.

    A lap lasts from one reading of the high-water mark to the next. What is known of the process is
    known at its ends only, so that there has to be a lap wherever it changes much.

    Attributes
    ----------
    floor : int
        Bytes of the process when nothing runs, its results apart. Only quiet moments show it.
    """

    def __init__(self) -> None:
        self.floor = 0
        self._running: dict[Hashable, _Running] = {}
        self._before = KnownMemory()

    def __contains__(self, who: Hashable) -> bool:
        return who in self._running

    def prefixes(self) -> set[str]:
        """Return the operations that are being measured."""
        return {running.kind.prefix for running in self._running.values()}

    def settle(self, nbytes: int, quiet: bool) -> None:
        """Take note of what the process takes, its results apart; quiet: nothing runs in it."""
        self.floor = nbytes if quiet else min(self.floor, nbytes)

    def grow(self, need: int) -> None:
        """Take note that an operand has run which needed so many bytes."""
        self.floor += need // _GROWTH

    def are_hidden_by(self, held: int, least: float) -> bool:
        """Whether so much has left since the lap began that it would hide what operands take."""
        return bool(self._running) and held < self._before.held - least

    def begin(self, who: Hashable, kind: OperandKind, expected: int) -> None:
        """Measure an operand from now on: a lap has just begun."""
        self._running[who] = _Running(kind, expected)

    def end(self, who: Hashable) -> tuple[OperandKind, int]:
        """Return the kind of an operand and what it took: a lap has just ended."""
        running = self._running.pop(who)
        return running.kind, running.most

    def drop(self, who: Hashable) -> None:
        """Measure an operand no more. Idempotent."""
        self._running.pop(who, None)

    def lap(self, peak: int, now: KnownMemory) -> None:
        """End a lap, and begin the next one.

        Parameters
        ----------
        peak
            High-water mark of the process in this lap, bytes, all pages counted.
        now
            What is known at its end.
        """
        if self._running:
            # The peak was at some moment between: what is at either end may have been there.
            before = self._before
            known = max(now.held, before.held) + max(now.transfers, before.transfers)
            known += max(now.surplus, before.surplus) + now.inputs
            excess = max(peak - self.floor - known, 0)
            total = sum(running.expected for running in self._running.values())
            for running in self._running.values():
                share = running.expected / total if total else 1 / len(self._running)
                running.most = max(running.most, int(excess * share))
        self._before = now
