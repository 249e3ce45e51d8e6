"""Watches a cluster from outside for growth of memory, hangs and leaks."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import time
import types
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from distributed import Client

from dask_marsched.bench.probes import Background

#: Seconds between two samples.
_EVERY = 10.0
#: Samples per measurement of the plugin's memory, which takes tenths of a second.
_SELDOM = 30
#: Shared objects, which do not count as the plugin's.
_CODE = (
    type,
    types.ModuleType,
    types.CodeType,
    types.FunctionType,
    types.BuiltinFunctionType,
)
#: Seconds after which a missing worker is a fault.
_MISSING = 120.0
#: Seconds without transitions after which a scheduler with tasks counts as hung.
_STANDSTILL = 120.0
#: Seconds in which an idle cluster must release unwanted results.
_QUIET = 30.0
#: Least number of samples for a slope.
_FEW_SAMPLES = 12


@dataclass(frozen=True)
class Sample:
    """Sizes at one moment.

    Attributes
    ----------
    seconds
        Since the start.
    scheduler
        Resident bytes of the scheduler.
    scheduler_files, nanny_files
        Open descriptors of the scheduler, and of the processes with the nannies.
    nannies
        Resident bytes of these.
    workers
        How many workers the scheduler has.
    tasks
        How many tasks.
    transitions
        How many transitions of tasks there have been.
    plugin
        Bytes that only the plugin holds on the scheduler, as last measured.
    """

    seconds: float
    scheduler: int
    scheduler_files: int
    nannies: int
    nanny_files: int
    workers: int
    tasks: int
    transitions: int
    plugin: int


class ResourceWatch(Background):
    """Samples the cluster periodically in a thread.

    Attributes
    ----------
    samples
        All samples.
    faults
        Descriptions of faults.
    """

    def __init__(
        self, client: Client, scheduler: Callable[[], int], nannies: Sequence[int], dumps: Path
    ) -> None:
        super().__init__()
        self.client = client
        self._dumps = dumps
        self.samples: list[Sample] = []
        self.faults: list[str] = []
        self._scheduler = scheduler
        self._nannies = [psutil.Process(pid) for pid in nannies]
        self._moved = self._start = time.monotonic()
        self._seen: dict[str, float] = {}  # nannies, and when they last had a worker
        self._transitions = self._plugin = 0

    def _turn(self) -> float:
        with contextlib.suppress(psutil.NoSuchProcess, OSError):
            nannies, *counts = self.client.run_on_scheduler(_sizes)
            sample = self._sample(len(nannies), *counts)
            self.samples.append(sample)
            self._look_for_missing(nannies)
            self._look_for_standstill(sample)
        return _EVERY

    def _look_for_missing(self, there: set[str]) -> None:
        now = time.monotonic()
        self._seen |= dict.fromkeys(there, now)
        for nanny in [nanny for nanny, last in self._seen.items() if now - last > _MISSING]:
            self.faults.append(f"the worker of {nanny} missing since {_MISSING:.0f} s")
            del self._seen[nanny]

    def _look_for_standstill(self, sample: Sample) -> None:
        now = time.monotonic()
        if sample.transitions != self._transitions or not sample.tasks:
            self._transitions, self._moved = sample.transitions, now
        elif now - self._moved > _STANDSTILL:
            self._moved = now
            path = self._dumps / f"standstill-{now - self._start:.0f}.txt"
            path.write_text(state(self.client))
            self.faults.append(f"standstill of {_STANDSTILL:.0f} s: see {path}")

    def _sample(self, workers: int, tasks: int, transitions: int) -> Sample:
        scheduler = psutil.Process(self._scheduler())
        if len(self.samples) % _SELDOM == 0:
            self._plugin = self.client.run_on_scheduler(_bytes_of_the_plugin)
        return Sample(
            time.monotonic() - self._start,
            scheduler.memory_info().rss,
            scheduler.num_fds(),
            sum(p.memory_info().rss for p in self._nannies),
            sum(p.num_fds() for p in self._nannies),
            workers,
            tasks,
            transitions,
            self._plugin,
        )


def _sizes(dask_scheduler: Any = None) -> tuple[set[str], int, int]:
    # A dead worker whose results are to be taken over is there as long as that takes; the process
    # that comes after it has the same nanny.
    s = dask_scheduler
    return {ws.nanny for ws in s.workers.values()}, len(s.tasks), s.transition_counter


def _bytes_of_the_plugin(dask_scheduler: Any = None) -> int:
    s = dask_scheduler
    plugin = s.plugins["marsched"]
    others = [s, s.loop, asyncio.get_running_loop(), *s.plugins.values(), *s.extensions.values()]
    for known in (s.tasks, s.workers, s.clients, s.stream_comms):
        others += known.values()
    seen = {id(one) for one in others if one is not plugin}
    size, waiting = 0, [plugin]
    while waiting:
        one = waiting.pop()
        if id(one) not in seen and not isinstance(one, _CODE):
            seen.add(id(one))
            size += sys.getsizeof(one)
            waiting.extend(gc.get_referents(one))
    return size


def slope(samples: Sequence[Sample]) -> float | None:
    """Return by how many bytes an hour the scheduler grew in the second half; None if unknown.

    In the first half logs of bounded length are filled.
    """
    half = samples[len(samples) // 2 :]
    if len(half) < _FEW_SAMPLES:
        return None
    found = np.polyfit([s.seconds for s in half], [s.scheduler for s in half], 1)
    return float(found[0]) * 3600


def asked(client: Client, function: Callable[..., Any]) -> Any:
    """Call a function on the scheduler, once it is there."""
    end = time.monotonic() + _MISSING
    while True:
        try:
            return client.run_on_scheduler(function)
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


def own_report(client: Client) -> tuple[dict[str, Any], dict[str, int]]:
    """Return what the plugin says of recoveries, and exceptions of its own by hook."""
    report = asked(client, _report)
    exceptions = Counter(report["exceptions"])
    for own in client.run(_worker_exceptions, on_error="return").values():
        if isinstance(own, dict):
            exceptions.update(own)
        elif not isinstance(own, OSError):  # that is a worker that has just been killed
            raise own
    told = report["last_exception"]
    totals = {k: v for k, v in report["recoveries"].items() if k != "last"}
    return {**totals, "retried": report["retried"], "last_exception": told}, dict(exceptions)


def _report(dask_scheduler: Any = None) -> dict[str, Any]:
    found: dict[str, Any] = dask_scheduler.plugins["marsched"].report()
    return found


def _worker_exceptions(dask_worker: Any = None) -> dict[str, int]:
    found: Counter[str] = Counter()
    for part in dask_worker.plugins["marsched"].report().values():
        found.update((part or {}).get("exceptions", {}))
    return dict(found)


def quiet(client: Client) -> list[str]:
    """Wait until nothing is wanted any more, and return what is kept all the same, in words."""
    end = time.monotonic() + _QUIET
    while True:
        tasks = client.run_on_scheduler(_sizes)[1]
        held = client.run(_held)
        found = [f"on the scheduler: {client.run_on_scheduler(_tasks)}"] if tasks else []
        for address, (keys, published, spilled) in sorted(held.items()):
            if keys or published or spilled:
                found.append(
                    f"{address}: {keys} results, {published} bytes published, {spilled} spilled"
                )
        if not found or time.monotonic() > end:
            return found
        time.sleep(0.5)


def _tasks(dask_scheduler: Any = None) -> str:
    """Return how many tasks there are, by state and by who wants them."""
    found = Counter(
        (ts.state, *sorted(cs.client_key for cs in ts.who_wants or ()))
        for ts in dask_scheduler.tasks.values()
    )
    return str(dict(found))


def _held(dask_worker: Any = None) -> tuple[int, int, int]:
    gc.collect()  # of garbage in cycles, which a worker that rests collects late
    report = dask_worker.plugins["marsched"].report()
    return (
        len(dask_worker.data),
        (report["shared"] or {}).get("published", 0),
        report["store"]["spilled"] if report["store"] else 0,
    )


def state(client: Client) -> str:
    """Return the state of a cluster that hangs, as text."""
    lines = list(client.run_on_scheduler(_scheduler_state))
    for address, own in client.run(_worker_state, on_error="return").items():
        lines.append(f"== {address}")
        lines += [str(own)] if isinstance(own, BaseException) else own
    return "\n".join(lines)


def _scheduler_state(dask_scheduler: Any = None) -> list[str]:
    s = dask_scheduler
    now = time.time()
    lines = [
        f"{ws.address} {ws.status} processing {len(ws.processing)} has {len(ws.has_what)} "
        f"seen {now - ws.last_seen:.1f} s ago running {ws in s.running} idle {ws.address in s.idle}"
        for ws in s.workers.values()
    ]
    lines.append(str(Counter(ts.state for ts in s.tasks.values())))
    for ts in s.tasks.values():
        if ts.state in ("processing", "no-worker", "queued", "erred") or (
            ts.state == "waiting" and not ts.waiting_on
        ):
            where = ts.processing_on.address if ts.processing_on else ""
            has = {d.key: [w.address for w in d.who_has or ()] for d in ts.dependencies}
            lines.append(f"{ts.key} {ts.state} {where} {has}"[:600])
            lines += [
                f"    {e.start} -> {e.finish} {e.stimulus_id} {now - e.timestamp:.1f} s ago"
                for e in s.transition_log
                if e.key == ts.key
            ][-8:]
    return lines


def _worker_state(dask_worker: Any = None) -> list[str]:
    state = dask_worker.state
    plugin = dask_worker.plugins.get("marsched")
    lines = [
        f"{dask_worker.status} running {state.running} executing {state.executing} "
        f"in flight {state.in_flight_workers} busy {state.busy_workers} "
        f"ready {list(state.ready)[:5]} missing {state.missing_dep_flight}",
        str(plugin.report() if plugin is not None else None),
    ]
    for ts in state.tasks.values():
        if ts.state not in ("memory", "released"):
            lines.append(f"{ts!r} waits for {[d.key for d in ts.waiting_for_data][:8]}")
            lines += [f"    {event}"[:300] for event in state.story(ts.key)[-8:]]
    return lines
