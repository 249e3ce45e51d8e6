"""Reports for each lost worker the operands computed again and the duration of the recovery."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Any, NamedTuple

from dask.typing import Key
from dask.utils import key_split

from dask_marsched.fallbacks.counters import Counters
from dask_marsched.fallbacks.guard import guarded
from dask_marsched.host.scheduler.departed_workers import ReassignedTasks
from dask_marsched.host.scheduler.lost_results import TOPIC, Loss, read_loss

#: Losses remembered for `status`; keys, and groups of tasks, named in the report of one.
_MOST_LISTED = 20
#: Start states of the transitions that matter for a loss.
_RELEVANT = frozenset({"memory", "processing", "released"})

_TOTALS = ("losses", "recovered", "results_lost", "results_adopted", "computed_again", "excess")


class Recoveries:
    """Counts losses of workers, measures the recoveries, and logs both as events."""

    def __init__(self, scheduler: Any, counters: Counters, clock: Callable[[], float]) -> None:
        self.scheduler = scheduler
        self.counters = counters
        self.failure: str | None = None
        self._clock = clock
        self._last: deque[dict[str, Any]] = deque(maxlen=_MOST_LISTED)
        self._missing: dict[Key, list[_OpenRecovery]] = {}
        self._totals: Counter[str] = Counter()
        self._stimulus = ""
        self._transitions: list[tuple[Key, str, str]] = []

    def moved(self, key: Key, start: str, finish: str, stimulus_id: str) -> None:
        """Keep a transition until the next stimulus: Dask's own log may be too short."""
        if stimulus_id != self._stimulus:
            self._stimulus = stimulus_id
            self._transitions = []
        if start in _RELEVANT and not stimulus_id.startswith("update-graph"):
            self._transitions.append((key, start, finish))

    @guarded(lambda: None)
    def record_loss(
        self,
        worker: str,
        stimulus_id: str,
        *,
        adopted: int = 0,
        reassigned: ReassignedTasks | None = None,
    ) -> None:
        """Record the removal of a worker, after the scheduler has reacted to it.

        `adopted` counts its results that other workers have taken over; `reassigned` are the tasks
        that others got before the removal.
        """
        died, sent_again = reassigned or (self._clock(), ())
        moves = [(key, "processing", "released") for key in sent_again]
        if stimulus_id == self._stimulus:
            moves += self._transitions
        loss = read_loss(self.scheduler, moves)
        if not (loss.lost or loss.interrupted or adopted):
            return  # an idle worker without results
        event = _event(worker, loss, adopted)
        event["time"] = died
        self._last.append(event)
        self._totals.update(
            losses=1,
            results_lost=event["lost"],
            results_adopted=adopted,
            computed_again=event["again"],
            excess=event["excess"],
        )
        self.scheduler.log_event(TOPIC, {"action": "worker-lost", **event})
        if loss.pending:
            opened = _OpenRecovery(event, set(loss.pending))
            for key in loss.pending:
                self._missing.setdefault(key, []).append(opened)
        else:
            self._end(event)

    def settled(self, key: Key) -> None:
        """Note that an operand has a result, has failed or is no longer wanted."""
        if not self._missing:  # the frequent case
            return
        for opened in self._missing.pop(key, ()):
            opened.missing.discard(key)
            if not opened.missing:
                self._end(opened.event)

    def _end(self, event: dict[str, Any]) -> None:
        event["seconds"] = self._clock() - event["time"]
        self._totals["recovered"] += 1
        summary = {name: event[name] for name in ("worker", "time", "lost", "again", "seconds")}
        self.scheduler.log_event(TOPIC, {"action": "recovered", **summary})

    def clear(self) -> None:
        """Forget the recoveries under way, as all tasks are gone."""
        self._missing.clear()

    def report(self) -> dict[str, Any]:
        """Return totals, and the last losses, as plain values for JSON."""
        return {**{name: self._totals[name] for name in _TOTALS}, "last": list(self._last)}


class _OpenRecovery(NamedTuple):
    event: dict[str, Any]
    missing: set[Key]  # still to be computed


def _event(worker: str, loss: Loss, adopted: int) -> dict[str, Any]:
    why = {
        str(key): "a client wants it" if by is None else f"{by} reads it"
        for key, by in list(loss.because.items())[:_MOST_LISTED]
    }
    of_loss = set(loss.lost)
    return {
        "worker": worker,
        "lost": len(loss.lost),
        "adopted": adopted,
        "interrupted": len(loss.interrupted),
        "again": len(loss.again),
        "again_lost": sum(key in of_loss for key in loss.again),
        "excess": len(loss.again) - loss.needed,
        "not_needed": loss.spared,
        "groups": dict(Counter(map(key_split, loss.again)).most_common(_MOST_LISTED)),
        "why": why,
        "seconds": None,
    }
