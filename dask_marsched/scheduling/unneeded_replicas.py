"""Finds replicas that no task needs any more; Dask itself looks every two seconds only."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from distributed.core import Status
from distributed.scheduler import TaskState, WorkerState

#: Replicas of smaller results, in bytes, are not worth a message.
_WORTH_A_MESSAGE = 64 * 2**10
#: With more readers than this per thread, idle workers may still take some of them over.
_READERS_PER_THREAD = 2
#: Up to this many readers of a result are checked each time.
_FEW_READERS = 8


class UnneededReplicas:
    """Finds the replicas to drop after tasks were sent to workers, finished or fetched inputs.

    Once all dependents of a result were sent to workers that have it, its other replicas are
    dropped. All stay while so many dependents were sent to so few threads that others may take some
    over. One replica always stays, and results that a client holds are left alone.
    """

    def __init__(self) -> None:
        self.keepers: Callable[[TaskState], Iterable[WorkerState]] = lambda ts: ()
        #: The workers on which tasks run a second time.
        self.second_workers: Callable[[Iterable[TaskState]], Iterable[WorkerState]] = lambda _: ()
        self._suspects: dict[TaskState, None] = {}
        #: By result with many readers, one of these that all replicas are kept for. While it
        #: waits the others need not be checked.
        self._reason: dict[TaskState, TaskState] = {}

    def copied(self, tasks: Iterable[TaskState | None]) -> None:
        """Have `superfluous` check results that a worker has fetched."""
        for ts in tasks:
            if ts is not None and _copies(ts):
                self._suspects[ts] = None

    def progressed(self, ts: TaskState) -> None:
        """Have `superfluous` check the inputs of a task that was sent to a worker, or is done."""
        self.copied(ts.dependencies)

    def forget(self, ts: TaskState) -> None:
        """Forget a result that is gone for good."""
        self._reason.pop(ts, None)

    def clear(self) -> None:
        """Forget everything."""
        self._suspects.clear()
        self._reason.clear()

    def superfluous(self) -> dict[WorkerState, list[TaskState]]:
        """Return the replicas to drop, by worker."""
        drop: dict[WorkerState, list[TaskState]] = {}
        for ts in self._suspects:
            there = _holders(ts)
            waiters = ts.waiters or ()
            if not waiters or self._is_wanted_elsewhere(ts) or _are_many(waiters, there):
                continue
            needed = {waiter.processing_on for waiter in waiters}
            needed.update(self.second_workers(waiters))
            if _are_many(waiters, needed) or not _may_drop(ts):
                continue
            # Replicas on a keeper's host are views of its shared memory: to drop the keeper's
            # frees nothing, and the result would be lost with those workers.
            hosts = {ws.host for ws in needed if ws}
            needed.update(ws for ws in self.keepers(ts) if ws.host in hosts)
            for ws in sorted(there - needed, key=lambda ws: ws.address):
                drop.setdefault(ws, []).append(ts)
        self._suspects.clear()
        return drop

    def _is_wanted_elsewhere(self, ts: TaskState) -> bool:
        """Whether a reader of a result waits, or was sent to a worker without the result."""
        there, waiters = _holders(ts), ts.waiters or ()
        reason = self._reason.pop(ts, None)
        if reason is None or reason not in waiters or reason.processing_on in there:
            reason = next((w for w in waiters if w.processing_on not in there), None)
        if reason is not None and len(waiters) > _FEW_READERS:
            self._reason[ts] = reason
        return reason is not None


def _are_many(waiters: Collection[TaskState], workers: Iterable[WorkerState | None]) -> bool:
    """Whether there are more tasks than these workers will run soon."""
    return len(waiters) > _READERS_PER_THREAD * sum(ws.nthreads for ws in workers if ws)


def _holders(ts: TaskState) -> set[WorkerState]:
    return ts.who_has or set()


def _copies(ts: TaskState) -> bool:
    return len(_holders(ts)) > 1 and ts.nbytes >= _WORTH_A_MESSAGE


def _may_drop(ts: TaskState) -> bool:
    if ts.state != "memory" or not _copies(ts) or ts.who_wants:
        return False
    # The results of a retiring worker are copied elsewhere; if these copies were dropped they would
    # be made again, for ever.
    return all(ws.status == Status.running for ws in _holders(ts))
