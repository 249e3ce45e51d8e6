"""The quota of a worker: which bytes are taken, promised, free, and who is granted some next.

All amounts are bytes. The ledger knows nothing of tasks, clocks or processes: it is told what a
process holds and who asks, in the order of priority, and answers.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

#: What is this many times smaller than the limit is granted always.
_NEGLIGIBLE = 1000
#: How many smaller requests may be granted before one that waits: the worker stays at work, and
#: what is large does not wait for ever.
_OVERTAKES = 8


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """What an operand takes from its start to its end, in bytes.

    Parameters
    ----------
    inputs
        Inputs that are not in memory yet.
    output
        Its result.
    working
        What it takes beside inputs and result, at most at one time.
    """

    inputs: int = 0
    output: int = 0
    working: int = 0

    @property
    def total(self) -> int:
        """All of it, bytes."""
        return self.inputs + self.output + self.working


@dataclass(frozen=True, slots=True)
class MemoryRequest:
    """An operand that could start, and what it needs."""

    who: Hashable
    need: MemoryNeed


class Quota:
    """The ledger of one worker.

    Parameters
    ----------
    limit
        Bytes that the process may take in all.
    overtakes
        How many requests of lower priority may be granted before one that does not fit.

    Attributes
    ----------
    held
        Bytes of the results in memory.
    transfers
        Bytes that transfers take beside these.
    unmanaged
        Bytes of the process that are none of this: modules, caches, fragments.

    Notes
    -----
    A request that does not fit waits. Smaller ones behind it may be granted before it, but each
    request is overtaken at most `overtakes` times: then nothing behind it is granted until it
    is. What runs comes to an end, so that it finds at last a worker where nothing runs, and
    there `force` grants whatever it asks for. Requests that arrive later with a higher priority
    are not counted as overtaking.
    """

    def __init__(self, limit: int, overtakes: int = _OVERTAKES) -> None:
        self.limit = limit
        self.overtakes = overtakes
        self.held = 0
        self.transfers = 0
        self.unmanaged = 0
        self.promised = 0
        self.grants: dict[Hashable, MemoryNeed] = {}
        self._overtaken: dict[Hashable, int] = {}

    @property
    def used(self) -> int:
        """Bytes taken or promised."""
        return self.unmanaged + self.held + self.transfers + self.promised

    @property
    def free(self) -> int:
        """Bytes that may still be granted; negative where more is taken than the limit."""
        return self.limit - self.used

    def observe(self, resident: int, held: int, transfers: int) -> None:
        """Take note of what the process really takes.

        Parameters
        ----------
        resident
            Its resident memory, bytes.
        held
            Bytes of the results in memory.
        transfers
            Bytes of transfers under way that are no results in memory.

        Notes
        -----
        How much of their promise running operands have taken is not known. So the unmanaged
        memory lies between what remains if they took all and if they took nothing, and the
        last estimate is kept where it lies between these.
        """
        self.held = held
        self.transfers = transfers
        most = resident - held
        self.unmanaged = min(max(self.unmanaged, most - transfers - self.promised), most)

    def fits(self, nbytes: int) -> bool:
        """Whether so many bytes are free, or so few as to make no difference.

        Else a process whose modules alone exceed the limit would run small operands one by one.
        """
        return nbytes <= self.free or nbytes * _NEGLIGIBLE <= self.limit

    def choose(self, queue: Iterable[MemoryRequest]) -> MemoryRequest | None:
        """Grant the first request that may be granted, and return it.

        Parameters
        ----------
        queue
            Requests in the order of priority, at least the first of them.
        """
        ahead: list[Hashable] = []
        for request in queue:
            if self.fits(request.need.total):
                for who in ahead:
                    self._overtaken[who] = self._overtaken.get(who, 0) + 1
                self.force(request)
                return request
            if self._overtaken.get(request.who, 0) >= self.overtakes:
                return None
            ahead.append(request.who)
        return None

    def force(self, request: MemoryRequest) -> None:
        """Grant a request whether it fits or not."""
        self.release(request.who)
        self._overtaken.pop(request.who, None)
        self.grants[request.who] = request.need
        self.promised += request.need.total

    def change(self, who: Hashable, need: MemoryNeed) -> None:
        """Replace what was granted, as inputs arrive or working space is given back."""
        if who in self.grants:
            self.promised += need.total - self.grants[who].total
            self.grants[who] = need

    def release(self, who: Hashable) -> None:
        """Take back what was granted. Idempotent."""
        need = self.grants.pop(who, None)
        if need is not None:
            self.promised -= need.total

    def keep_only(self, waiting: Iterable[Hashable]) -> None:
        """Forget how often requests were overtaken that do not wait any more."""
        self._overtaken = {w: self._overtaken[w] for w in waiting if w in self._overtaken}
