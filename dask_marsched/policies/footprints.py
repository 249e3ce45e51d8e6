"""Estimates the memory of running operands from the high-water mark of their process."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from dask_marsched.policies.memory_needs import OperandKind

#: The floor grows by an operand's need divided by this, lest many small ones hide large needs.
_GROWTH = 1000


@dataclass(frozen=True, slots=True)
class KnownMemory:
    """Bytes of a process that are not made by running operands."""

    held: int = 0  #: Results in memory.
    transfers: int = 0
    surplus: int = 0  #: Pages of shared memory that the kernel counts in addition.
    inputs: int = 0  #: Inputs of running operands that are read from disk.


@dataclass(slots=True)
class _Running:
    kind: OperandKind
    expected: int
    most: int = 0


class Footprints:
    """Divides the growth of a process during each lap among the operands that ran in it.

    A lap lasts from one reading of the high-water mark to the next, and should end whenever the
    process changes much.
    """

    def __init__(self) -> None:
        self.floor = 0  #: Bytes of the process without results when nothing runs.
        self._running: dict[Hashable, _Running] = {}
        self._before = KnownMemory()

    def __contains__(self, who: Hashable) -> bool:
        return who in self._running

    def prefixes(self) -> set[str]:
        """Return the names of the operations being measured."""
        return {running.kind.prefix for running in self._running.values()}

    def settle(self, nbytes: int, quiet: bool) -> None:
        """Record the bytes of the process without results; `quiet` if nothing runs."""
        self.floor = nbytes if quiet else min(self.floor, nbytes)

    def grow(self, need: int) -> None:
        """Raise the floor by a small part of what an operand needed."""
        self.floor += need // _GROWTH

    def are_hidden_by(self, held: int, least: float) -> bool:
        """Whether over `least` bytes were released in this lap, which would hide footprints."""
        return bool(self._running) and held < self._before.held - least

    def begin(self, who: Hashable, kind: OperandKind, expected: int) -> None:
        """Measure an operand from now on; a lap has just begun."""
        self._running[who] = _Running(kind, expected)

    def end(self, who: Hashable) -> tuple[OperandKind, int]:
        """Stop measuring, and return kind and bytes of an operand; a lap has just ended."""
        running = self._running.pop(who)
        return running.kind, running.most

    def drop(self, who: Hashable) -> None:
        """Stop measuring an operand. Idempotent."""
        self._running.pop(who, None)

    def lap(self, peak: int, now: KnownMemory) -> None:
        """End a lap with this high-water mark in bytes and known memory, and begin the next one."""
        if self._running:
            # The peak may have been at either end of the lap.
            before = self._before
            known = max(now.held, before.held) + max(now.transfers, before.transfers)
            known += max(now.surplus, before.surplus) + now.inputs
            excess = max(peak - self.floor - known, 0)
            total = sum(running.expected for running in self._running.values())
            for running in self._running.values():
                share = running.expected / total if total else 1 / len(self._running)
                running.most = max(running.most, int(excess * share))
        self._before = now
