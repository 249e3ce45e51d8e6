"""Keeps the memory quota of a worker, in bytes, and chooses the next operand to be granted."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

#: A request this many times smaller than the limit is always granted. Otherwise a process whose
#: modules exceed the limit would run small operands one by one.
_NEGLIGIBLE = 1000


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Bytes that an operand needs from start to end."""

    inputs: int = 0  #: Inputs that are not in memory yet.
    output: int = 0
    working: int = 0  #: Peak of its other memory.

    @property
    def total(self) -> int:
        """Sum of all parts, in bytes."""
        return self.inputs + self.output + self.working


@dataclass(frozen=True, slots=True)
class MemoryRequest:
    """An operand that could start, and its need."""

    who: Hashable
    need: MemoryNeed


class Quota:
    """Keeps the bytes of one worker's process below a limit.

    A request that does not fit waits. Smaller ones behind it in the queue may be granted first, at
    most `overtakes` times. After that nothing behind it is granted, so that running operands end
    and free their memory; a worker that is idle even then calls `force`. A request that arrives
    later and is queued in front of it, by a higher priority, does not count.
    """

    overtakes = 8  #: Enough to keep the worker busy without starvation.

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0  #: Bytes of results in memory.
        self.transfers = 0  #: Bytes of transfers in addition to these.
        self.unmanaged = 0  #: Other bytes of the process: modules, caches, fragmentation.
        self.promised = 0
        self.grants: dict[Hashable, MemoryNeed] = {}
        self._overtaken: dict[Hashable, int] = {}

    @property
    def used(self) -> int:
        """Bytes used or granted."""
        return self.unmanaged + self.held + self.transfers + self.promised

    @property
    def free(self) -> int:
        """Bytes that may still be granted; negative above the limit."""
        return self.limit - self.used

    def observe(self, resident: int, held: int, transfers: int) -> None:
        """Record bytes of the process: all resident ones, results, and transfers under way.

        How much of its grant a running operand already uses is unknown. If none of it, all that is
        neither result nor transfer is unmanaged; if all of it, the grants are subtracted as well.
        The last estimate is kept if it lies between these two bounds, else the nearer one is taken.
        """
        self.held = held
        self.transfers = transfers
        most = resident - held
        self.unmanaged = min(max(self.unmanaged, most - transfers - self.promised), most)

    def fits(self, nbytes: int) -> bool:
        """Whether this many bytes are free, or the amount is negligible."""
        return nbytes <= self.free or nbytes * _NEGLIGIBLE <= self.limit

    def choose(self, queue: Iterable[MemoryRequest]) -> MemoryRequest | None:
        """Grant the first request that may be granted, in order of priority, and return it."""
        ahead: list[Hashable] = []
        for request in queue:
            if self.fits(request.need.total):
                for who in ahead:
                    self._overtaken[who] = self._overtaken.get(who, 0) + 1
                self.grant(request)
                return request
            if self._overtaken.get(request.who, 0) >= self.overtakes:
                return None
            ahead.append(request.who)
        return None

    def grant(self, request: MemoryRequest) -> None:
        """Grant a request without a check: `choose` has made it, or there is no other way on."""
        self.release(request.who)
        self._overtaken.pop(request.who, None)
        self.grants[request.who] = request.need
        self.promised += request.need.total

    def change(self, who: Hashable, need: MemoryNeed) -> None:
        """Replace a grant when inputs arrive or working memory is released."""
        if who in self.grants:
            self.promised += need.total - self.grants[who].total
            self.grants[who] = need

    def release(self, who: Hashable) -> None:
        """Withdraw a grant. Idempotent."""
        need = self.grants.pop(who, None)
        if need is not None:
            self.promised -= need.total

    def keep_only(self, waiting: Iterable[Hashable]) -> None:
        """Drop the overtaking counts of requests that no longer wait."""
        self._overtaken = {w: self._overtaken[w] for w in waiting if w in self._overtaken}
