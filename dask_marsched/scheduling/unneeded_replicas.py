"""Copies that are not needed: found at once, instead of every few seconds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from distributed.core import Status
from distributed.scheduler import TaskState, WorkerState

#: Bytes of a result from which on it pays to send a message about a copy of it.
_WORTH_A_MESSAGE = 64 * 2**10
#: More tasks than this for a thread may be spread again.
_MANY = 2
#: Readers of a result up to which all are looked at each time.
_SEEN_AT_ONCE = 8


class UnneededReplicas:
    """Finds the copies to drop because of what just happened.

    A result that another worker has fetched lies on two workers until its last dependent is done.
    Once all its dependents have been sent to workers, and these all have it, the other copies are
    of no use: where results are joined they would double what the join holds, within
    milliseconds, while Dask's active memory manager looks once in two seconds. As long as a
    dependent waits, all copies stay: it may go to any of them. So they do as long as many were sent
    where the threads are few: other workers may take some of those over.

    Copies of what a client holds are left alone: it may have asked for them. At least one
    replica of each result stays.

    Attributes
    ----------
    keepers
        Returns who holds a result so that it outlives that worker's process.
    protected
        Whether all copies of a result are to stay.
    """

    def __init__(self) -> None:
        self.protected: Callable[[TaskState], bool] = lambda ts: False
        self.keepers: Callable[[TaskState], Iterable[WorkerState]] = lambda ts: ()
        self._suspects: dict[TaskState, None] = {}
        #: Of results that many read, one reader that all copies are kept for. While there is one
        #: the others need no look, which would take as long as there are readers, for each of them.
        self._reason: dict[TaskState, TaskState] = {}

    def copied(self, tasks: Iterable[TaskState | None]) -> None:
        """Take note of results that a worker has fetched."""
        for ts in tasks:
            if ts is not None and _copies(ts):
                self._suspects[ts] = None

    def progressed(self, ts: TaskState) -> None:
        """Take note of a task that was sent to a worker, or is done."""
        self.copied(ts.dependencies)

    def forget(self, ts: TaskState) -> None:
        """Take note that a result is gone for good."""
        self._reason.pop(ts, None)

    def clear(self) -> None:
        """Drop everything."""
        self._suspects.clear()
        self._reason.clear()

    def superfluous(self) -> dict[WorkerState, list[TaskState]]:
        """Return the copies to be dropped, by worker."""
        drop: dict[WorkerState, list[TaskState]] = {}
        for ts in self._suspects:
            there = _holders(ts)
            waiters = ts.waiters or ()
            if not waiters or self._is_wanted_elsewhere(ts) or _are_many(waiters, there):
                continue
            needed = {waiter.processing_on for waiter in waiters}
            if _are_many(waiters, needed) or not _may_drop(ts) or self.protected(ts):
                continue
            # Copies on a keeper's host are views of the same memory, which is lost with them:
            # nothing is saved where the keeper's goes, and it would have to be computed again.
            hosts = {ws.host for ws in needed if ws}
            needed.update(ws for ws in self.keepers(ts) if ws.host in hosts)
            for ws in sorted(there - needed, key=lambda ws: ws.address):
                drop.setdefault(ws, []).append(ts)
        self._suspects.clear()
        return drop

    def _is_wanted_elsewhere(self, ts: TaskState) -> bool:
        """Whether a task that reads a result waits, or has been sent where the result is not."""
        there, waiters = _holders(ts), ts.waiters or ()
        reason = self._reason.pop(ts, None)
        if reason is None or reason not in waiters or reason.processing_on in there:
            reason = next((w for w in waiters if w.processing_on not in there), None)
        if reason is not None and len(waiters) > _SEEN_AT_ONCE:
            self._reason[ts] = reason
        return reason is not None


def _are_many(waiters: Collection[TaskState], workers: Iterable[WorkerState | None]) -> bool:
    """Whether so many tasks are on so few threads that others may take some of them over."""
    return len(waiters) > _MANY * sum(ws.nthreads for ws in workers if ws)


def _holders(ts: TaskState) -> set[WorkerState]:
    return ts.who_has or set()


def _copies(ts: TaskState) -> bool:
    return len(_holders(ts)) > 1 and ts.nbytes >= _WORTH_A_MESSAGE


def _may_drop(ts: TaskState) -> bool:
    if ts.state != "memory" or not _copies(ts) or ts.who_wants:
        return False
    # A worker that retires has its results copied elsewhere. To drop these copies for the sake of
    # what still runs on it would have them copied again, for ever.
    return all(ws.status == Status.running for ws in _holders(ts))
