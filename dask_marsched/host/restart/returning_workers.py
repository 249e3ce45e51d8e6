"""Takes workers back that outlived their scheduler, with what they hold and run.

A key may have been used again for another task just before the scheduler died. The numbers of runs,
which only grow, tell a result of the former task: its run is older than the graph of the latter.

Until all of them are back, or are found dead, nothing is sent to workers. What belongs to no known
graph is kept for a while: a graph that came last may not be in the journal, and its client sends it
again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Collection, Iterable
from typing import Any

from dask._task_spec import Alias
from dask.typing import Key
from distributed.comm import parse_address, parse_host_port
from distributed.metrics import monotonic
from distributed.scheduler import Scheduler, TaskState
from distributed.shuffle._core import id_from_key
from distributed.spans import SpansSchedulerExtension

from dask_marsched.host.contract import demand, misfits_of_attributes, misfits_of_function
from dask_marsched.host.restart import process
from dask_marsched.host.restart.process import NO_RUN
from dask_marsched.host.restart.reported_states import (
    STIMULUS,
    Held,
    Run,
    released_memory,
    released_processing,
    stay,
)
from dask_marsched.host.worker.reconnection import REGISTERED, RETURNING

logger = logging.getLogger("dask_marsched")

#: Seconds after which it is checked whether the missing workers are alive, and between two checks.
_CHECKED = 0.3
#: Seconds after which those that are alive but do not come are not waited for any longer.
_LONGEST = 10.0
#: Seconds for which a worker's messages wait for the graph of what it runs.
_CLAIMED = 5.0

_ANOTHER_RUN = -1
_STAYING = (("memory", "waiting"), ("processing", "waiting"))


def misfits(scheduler: Any) -> list[str]:
    """Return what taking workers back does not find as expected in a scheduler."""
    return [
        *misfits_of_attributes(
            "Scheduler", scheduler, ("_TRANSITIONS_TABLE", "handlers", "stream_comms")
        ),
        *misfits_of_function("Scheduler", scheduler, "_add_to_processing", ("ts", "ws")),
        *misfits_of_function("Scheduler", scheduler, "add_replica", ("ts", "ws")),
        *misfits_of_function(
            "Scheduler", scheduler, "transition", ("key", "finish", "stimulus_id")
        ),
        *misfits_of_function(
            "Scheduler", scheduler, "handle_long_running", ("key", "worker", "run_id")
        ),
        *misfits_of_function(
            "SpansSchedulerExtension", SpansSchedulerExtension, "heartbeat", ("ws", "data")
        ),
    ]


class ReturningWorkers:
    """Takes workers back; ``expected`` are the addresses of those that the journal names.

    Of tasks in graphs that the journal lacks, no run is older than ``last_run``.
    """

    def __init__(
        self, scheduler: Scheduler, expected: Iterable[str], last_run: int = NO_RUN
    ) -> None:
        self.scheduler: Any = scheduler
        self.expected = frozenset(expected)
        self.missing = set(expected)
        self.last_run = last_run
        self.first_runs: dict[Key, int] = {}  #: of tasks in the journal
        self.returned = self.held = self.still_running = 0
        self._announced: dict[str, dict[str, Any]] = {}
        self._running: dict[TaskState, Run] = {}
        #: Of keys that are in no graph yet.
        self.unclaimed: dict[Key, list[Held | Run]] = {}
        self._changed, self._went_on, self._claimed = (asyncio.Event() for _ in range(3))

    def install(self) -> None:
        """Answer workers that come back, or raise a RuntimeError and change nothing."""
        s = self.scheduler
        demand([*misfits(s), *process.misfits()], "workers do not outlive the scheduler")
        s.handlers[RETURNING] = self._announce
        # The adapter has given the scheduler a table of its own.
        s._TRANSITIONS_TABLE["released", "memory"] = released_memory
        s._TRANSITIONS_TABLE["released", "processing"] = released_processing
        if (spans := s.extensions.get("spans")) is not None:
            spans.heartbeat = _of_known_spans(spans)

    def restore_nothing(self) -> None:
        """Answer workers at once. What they hold of unknown tasks is freed."""
        self._went_on.set()
        self._claimed.set()

    def uninstall(self) -> None:
        """Restore the scheduler. Idempotent."""
        self.restore_nothing()
        self.scheduler.handlers.pop(RETURNING, None)
        if (spans := self.scheduler.extensions.get("spans")) is not None:
            vars(spans).pop("heartbeat", None)

    async def _announce(self, **holdings: Any) -> dict[str, str]:
        address = self.scheduler.coerce_address(holdings["address"])
        stream = self.scheduler.stream_comms.get(address)
        if stream is not None and not stream.please_stop:
            # The connection broke, and this scheduler has yet to notice. Dask raises when a worker
            # is still registered, and leaves it without an answer.
            if stream.comm is not None:  # else its registration is still to be answered
                stream.comm.abort()
            return {"status": REGISTERED}
        self._announced[address] = holdings
        return {"status": "OK"}

    def arrived(self, address: str) -> Awaitable[Any] | None:
        """Take what a worker holds that registers; called before it gets any task.

        The registration of one that has come back is answered after the coroutine. Only then does
        the worker tell what has finished, so that it finds its tasks being processed.
        """
        self.missing.discard(address)
        self._changed.set()
        holdings = self._announced.pop(address, None)
        if holdings is None or holdings["server_id"] != self.scheduler.workers[address].server_id:
            return None
        self.returned += 1
        found: list[tuple[Key, Held | Run]] = [
            (key, Held(address, run_id, nbytes, *holdings["types"][number]))
            for key, nbytes, number, run_id in holdings["held"]
        ]
        found += [(key, Run(address, *run)) for key, *run in holdings["runs"]]
        self._free(address, [key for key, one in found if not self._take(key, one)])
        waits = any(key in self.unclaimed for key, *_ in holdings["runs"])
        if waits:
            self._claimed.clear()
        return self._answer(waits)

    async def _answer(self, waits: bool) -> None:
        await self._went_on.wait()
        if waits:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._claimed.wait(), _CLAIMED)

    def _free(self, address: str, keys: list[Key]) -> None:
        if keys and address in self.scheduler.workers:
            self.scheduler.worker_send(
                address, {"op": "free-keys", "keys": keys, "stimulus_id": STIMULUS}
            )

    def _take(self, key: Key, found: Held | Run) -> bool:
        """Record a result or run, or return False if it is of no use."""
        # A scheduler that has gone on cannot tell what had become of the key meanwhile.
        if self._went_on.is_set():
            return False
        ts = self.scheduler.tasks.get(key)
        if ts is None:
            self.unclaimed.setdefault(key, []).append(found)
            return True
        if _is_older(found, ts, self.first_runs.get(key, NO_RUN)):
            return False
        if isinstance(found, Held):
            return self._take_result(ts, found)
        if ts.state != "released" or not ts.run_spec:
            return False
        self._running[ts] = found
        return True

    def _take_result(self, ts: TaskState, found: Held) -> bool:
        s = self.scheduler
        if ts.state == "memory":
            ws = s.workers[found.address]
            if ws not in (ts.who_has or ()):
                s.add_replica(ts, ws)
        elif ts.state == "released":
            s.transition(ts.key, "memory", stimulus_id=STIMULUS, found=found)
        else:
            return False
        self.held += 1
        return True

    def _take_run(self, ts: TaskState, run: Run) -> bool:
        s = self.scheduler
        # A task that reads from a shuffle has lost its inputs if that runs again.
        has_inputs = all(dts.who_has for dts in ts.dependencies)
        if run.address not in s.workers or ts.state != "released" or not has_inputs:
            return False
        s.transition(ts.key, "processing", stimulus_id=STIMULUS, run=run)
        self.still_running += 1
        if run.seceded:
            s.handle_long_running(
                key=ts.key,
                worker=run.address,
                run_id=run.run_id,
                compute_duration=None,
                stimulus_id=STIMULUS,
            )
        return True

    def claim(self, keys: Collection[Key]) -> bool:
        """Take what workers hold and run of the tasks of a graph that has arrived again.

        Return whether there was anything to take.
        """
        if not self.unclaimed:
            return False
        tasks = self.scheduler.tasks
        again = {ts for key in keys for ts in _of_shuffle(tasks[key])}
        claimed = [(tasks[key], found) for key in keys for found in self.unclaimed.pop(key, ())]
        claimed.sort(key=lambda one: isinstance(one[1], Run))  # a run needs its inputs
        for ts, found in claimed:
            if found.address not in self.scheduler.workers:
                continue
            if _is_older(found, ts, self.last_run):
                taken = False
            elif isinstance(found, Run):
                run = found._replace(run_id=_ANOTHER_RUN) if ts in again else found
                taken = self._take_run(ts, run)
            else:
                taken = ts not in again and self._take_result(ts, found)
            if not taken:
                self._free(found.address, [ts.key])
        self._let_claimed_stay()
        if not any(isinstance(one, Run) for found in self.unclaimed.values() for one in found):
            self._claimed.set()
        return bool(claimed)

    def _let_claimed_stay(self) -> None:
        """Ignore that claimed tasks are to start, which was decided before they were claimed.

        Later such transitions are Dask's own: a task starts again whose inputs were lost.
        """
        table = self.scheduler._TRANSITIONS_TABLE
        table |= dict.fromkeys(_STAYING, stay)
        # The graph's own transitions are made before the loop's next turn.
        for entry in _STAYING:
            asyncio.get_running_loop().call_soon(table.pop, entry, None)

    def settle(self) -> None:
        """Free what no graph has claimed."""
        self._claimed.set()
        unclaimed, self.unclaimed = self.unclaimed, {}
        by_worker: dict[str, list[Key]] = {}
        for key, found in unclaimed.items():
            for one in found:
                by_worker.setdefault(one.address, []).append(key)
        for address, keys in by_worker.items():
            self._free(address, keys)

    async def all_back(self) -> None:
        """Wait until no worker is missing that may still come."""
        begun = monotonic()
        await asyncio.sleep(_CHECKED)  # the journal may not know those that had just joined
        while self.missing and monotonic() - begun < _LONGEST:
            self._changed.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), _CHECKED)
            if not self._changed.is_set():
                asked = list(self.missing)  # some may come meanwhile
                alive = await asyncio.gather(*map(_listens, asked))
                for address, there in zip(asked, alive, strict=True):
                    if not there and address in self.missing:
                        logger.warning("%s died while there was no scheduler", address)
                        self.missing.discard(address)
        if self.missing:
            logger.warning("These workers have not come back: %s", ", ".join(self.missing))

    def _run_shuffles_again(self) -> None:
        """Drop what was transferred for P2P shuffles whose outputs are not all there.

        The scheduler's part of such a shuffle has died, and workers that return abandon theirs.
        """
        s = self.scheduler
        again: set[TaskState] = set()
        for ts in s.tasks.values():
            shuffle = _of_shuffle(ts)
            kept = {dts for dts in ts.dependents if dts.state == "memory"} if shuffle else set()
            if kept < ts.dependents:
                again |= shuffle - kept
        s.transitions({ts.key: "released" for ts in again if ts.state == "memory"}, STIMULUS)
        for ts in again & self._running.keys():
            # Freed and sent again, it would go on with the old run. So its end is one of another
            # run than the scheduler knows, which makes it run again.
            self._running[ts] = self._running[ts]._replace(run_id=_ANOTHER_RUN)

    def go_on(self) -> None:
        """Note what still runs; from here on, tasks may be sent to workers."""
        self._went_on.set()
        self.first_runs = {}
        self._run_shuffles_again()
        for ts, run in self._running.items():
            if not self._take_run(ts, run):
                self._free(run.address, [ts.key])
        self._running.clear()


def _is_older(found: Held | Run, ts: TaskState, first_run: int) -> bool:
    """Return whether something is of a former task with this key."""
    return ts.run_spec is not None and found.run_id < first_run  # data is of no run


def _of_shuffle(ts: TaskState) -> set[TaskState]:
    """Return the tasks of the P2P shuffle of which this is the barrier; none if it is none."""
    if id_from_key(ts.key) is None:
        return set()
    found = {ts, *ts.dependents}
    waiting = [*ts.dependencies]
    while waiting:
        transfer = waiting.pop()
        found.add(transfer)
        if isinstance(transfer.run_spec, Alias):  # of what it was fused into
            waiting += transfer.dependencies
    return found


def _of_known_spans(spans: Any) -> Any:
    """Return a handler that leaves out what workers measured in spans of the scheduler before."""
    stock = spans.heartbeat

    def heartbeat(ws: Any, data: dict[tuple[Any, ...], float]) -> None:
        stock(ws, {kind: value for kind, value in data.items() if kind[1] in spans.spans})

    return heartbeat


async def _listens(address: str) -> bool:
    """Return whether a worker's process may be alive."""
    scheme, location = parse_address(address)
    if scheme not in ("tcp", "tls"):
        return True
    host, port = parse_host_port(location)
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(host, port), _CHECKED)
    except ConnectionRefusedError:
        return False
    except (asyncio.TimeoutError, OSError):
        return True
    writer.close()
    return True
