"""Copies that are not needed: found at once, instead of every few seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from distributed.core import Status
from distributed.scheduler import TaskState, WorkerState

#: Bytes of a result from which on it pays to send a message about a copy of it.
_WORTH_A_MESSAGE = 64 * 2**10
#: Bytes of copies of hubs that a worker keeps, in parts of the rest that it holds.
#: In simulation at 16 workers, `(a @ a.T).sum()`, bytes and peak against stock Dask: no bound
#: 0.69 and 1.10; 4: 0.74 and 1.01; 2: 0.75 and 0.83; 1: 0.89 and 0.70.
_COPIES = 2.0


class Replicas:
    """Finds the copies to drop because of what just happened.

    Two kinds of them make peaks within milliseconds, while Dask's active memory manager looks
    once in two seconds:

    - A result that another worker has fetched lies on two workers until its last dependent is
      done. Once all its dependents have been sent to workers, and these all have it, the other
      copies are of no use: where results are joined they would double what the join holds. As
      long as a dependent waits, all copies stay: it may go to any of them.
    - Hubs, as the blocks of a matrix that is multiplied, are fetched by every worker in turn,
      and stay there to the end. Of such copies a worker keeps those that it read last, up to a
      bound.

    Copies of what a client holds are left alone: it may have asked for them. At least one
    replica of each result stays.

    Parameters
    ----------
    active
        Whether anything is to be dropped at all.
    """

    def __init__(self, active: bool = True) -> None:
        self._active = active
        self._suspects: dict[TaskState, None] = {}
        # Copies of hubs, by worker, those read last at the end.
        self._kept: dict[WorkerState, dict[TaskState, None]] = {}
        self._grown: dict[WorkerState, None] = {}

    def copied(self, tasks: Iterable[TaskState | None]) -> None:
        """Take note of results that a worker has fetched."""
        if not self._active:
            return
        for ts in tasks:
            if ts is not None and _copies(ts):
                self._suspects[ts] = None

    def sent(self, ts: TaskState) -> None:
        """Take note of a task that was sent to a worker."""
        if not self._active:
            return
        for dts in ts.dependencies:
            if _copies(dts):
                self._suspects[dts] = None

    def done(self, ts: TaskState, ws: WorkerState, reads_hubs: bool) -> None:
        """Take note of a task that a worker has done, and whether what it read are hubs."""
        if not self._active:
            return
        for dts in ts.dependencies:
            if not _copies(dts):
                continue
            self._suspects[dts] = None
            if reads_hubs:
                kept = self._kept.setdefault(ws, {})
                kept.pop(dts, None)
                kept[dts] = None
                self._grown[ws] = None

    def forget_worker(self, ws: WorkerState) -> None:
        """Drop what is known of a worker."""
        self._kept.pop(ws, None)
        self._grown.pop(ws, None)

    def clear(self) -> None:
        """Drop everything."""
        self._suspects.clear()
        self._kept.clear()
        self._grown.clear()

    def superfluous(
        self, planned_on: Callable[[TaskState, WorkerState], bool]
    ) -> dict[WorkerState, list[TaskState]]:
        """Return the copies to be dropped, by worker.

        Parameters
        ----------
        planned_on
            Whether a task that has not been sent yet is going to run on a worker.
        """
        drop: dict[WorkerState, list[TaskState]] = {}
        left: dict[TaskState, int] = {}

        def dropped(ts: TaskState, ws: WorkerState) -> bool:
            remaining = left.get(ts, len(_holders(ts))) - 1
            if not remaining or (ws in drop and ts in drop[ws]):
                return False
            left[ts] = remaining
            drop.setdefault(ws, []).append(ts)
            return True

        for ts in self._suspects:
            needed = {waiter.processing_on for waiter in ts.waiters or ()}
            there = _holders(ts)
            if not needed or not _may_drop(ts) or not needed <= there:
                continue  # None in `needed` is a dependent that waits
            for ws in sorted(there - needed, key=lambda ws: ws.address):
                dropped(ts, ws)
        self._suspects.clear()
        for ws in self._grown:
            self._bound(ws, planned_on, dropped)
        self._grown.clear()
        return drop

    def _bound(
        self,
        ws: WorkerState,
        planned_on: Callable[[TaskState, WorkerState], bool],
        dropped: Callable[[TaskState, WorkerState], bool],
    ) -> None:
        """Drop copies of hubs beyond the bound, those first that were read first."""
        kept = self._kept[ws]
        for ts in [ts for ts in kept if not _copies(ts) or ws not in _holders(ts)]:
            del kept[ts]
        copies = sum(ts.nbytes for ts in kept)
        most = _COPIES * (ws.nbytes - copies)
        for ts in list(kept):
            if copies <= most:
                return
            if not _may_drop(ts) or any(
                waiter.processing_on is ws or planned_on(waiter, ws) for waiter in ts.waiters or ()
            ):
                continue
            if dropped(ts, ws):
                del kept[ts]
                copies -= ts.nbytes


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
