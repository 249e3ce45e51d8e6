"""Writes a simulation's timeline in the trace event format, which Perfetto and Chrome open."""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_marsched.simulation.report.timeline import Timeline, fault_name, highest, level_at

#: The process that stands for the cluster; worker n is process n + _FIRST_WORKER.
_CLUSTER = 1
_FIRST_WORKER = 2
#: Lanes of transfers are numbered from here on, those of tasks from 1.
_FIRST_TRANSFER_LANE = 10_001
_PAUSE_LANE = 20_001
#: Most points in a curve of memory; of more, the highest in each bin is written.
_MOST_POINTS = 1_000

Event = dict[str, Any]


def write_trace(
    path: Path,
    timeline: Timeline,
    facts: dict[str, Any],
    makespan: float,
    workers: Sequence[int],
) -> None:
    """Write a trace; see `SimulationReport.to_chrome_trace`."""
    with path.open("w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit": "ms", "otherData": ')
        file.write(json.dumps(facts) + ', "traceEvents": [\n')
        separator = ""
        for event in _events(timeline, makespan, workers):
            file.write(separator + json.dumps(event, separators=(",", ":")))
            separator = ",\n"
        file.write("\n]}\n")


def _events(timeline: Timeline, makespan: float, workers: Sequence[int]) -> Iterator[Event]:
    yield _name("process_name", _CLUSTER, "cluster")
    for worker in workers:
        yield _name("process_name", worker + _FIRST_WORKER, f"worker {worker}")
    lanes: dict[tuple[int, int], str] = {}
    yield from _tasks(timeline, lanes)
    yield from _transfers(timeline, lanes)
    for worker, start, stop in timeline.pauses:
        lanes[worker, _PAUSE_LANE] = "paused"
        yield _slice("paused", worker, _PAUSE_LANE, _microseconds(start), _microseconds(stop), {})
    for (worker, lane), name in lanes.items():
        yield _name("thread_name", worker + _FIRST_WORKER, name, lane)
    yield from _counter(timeline.changes.rows, makespan, _CLUSTER)
    for worker, changes in timeline.changes_by_worker(workers):
        yield from _counter(changes, makespan, worker + _FIRST_WORKER)
    for time, what, worker in timeline.faults:
        yield {
            "name": fault_name(what, worker, "worker "), "ph": "i", "s": "g",
            "ts": _microseconds(time), "pid": _CLUSTER, "tid": 0,
        }  # fmt: skip


def _microseconds(seconds: float) -> int:
    # Rounding to whole numbers keeps the order of times; sums of fractions would not be exact.
    return round(seconds * 1e6)


def _name(kind: str, process: int, name: str, lane: int = 0) -> Event:
    return {"name": kind, "ph": "M", "pid": process, "tid": lane, "args": {"name": name}}


def _slice(
    name: str, worker: int, lane: int, start: int, stop: int, facts: dict[str, Any]
) -> Event:
    return {
        "name": name, "ph": "X", "ts": start, "dur": stop - start, "pid": worker + _FIRST_WORKER,
        "tid": lane, "args": facts,
    }  # fmt: skip


def _tasks(timeline: Timeline, names: dict[tuple[int, int], str]) -> Iterator[Event]:
    groups, of_key = timeline.groups
    rows = timeline.tasks.rows
    seen: set[int] = set()
    # Sorted by start: the second execution of a task is the recomputation.
    for index, lane, start, stop in _in_lanes(rows, rows["worker"]):
        row = rows[index]
        key, worker = int(row["key"]), int(row["worker"])
        facts: dict[str, Any] = {"key": str(timeline.keys[key])}
        if key in seen:
            facts["recomputed"] = True
        seen.add(key)
        names[worker, lane + 1] = f"tasks {lane + 1}"
        yield _slice(groups[of_key[key]], worker, lane + 1, start, stop, facts)


def _transfers(timeline: Timeline, names: dict[tuple[int, int], str]) -> Iterator[Event]:
    rows = timeline.transfers.rows
    for index, lane, start, stop in _in_lanes(rows, rows["destination"]):
        source, destination, keys, nbytes, _, _, between_hosts = rows[index].tolist()
        names[destination, _FIRST_TRANSFER_LANE + lane] = f"receives {lane + 1}"
        facts = {
            "from": source, "results": keys, "bytes": nbytes, "between hosts": between_hosts,
        }  # fmt: skip
        yield _slice(f"from {source}", destination, _FIRST_TRANSFER_LANE + lane, start, stop, facts)


def _in_lanes(
    rows: NDArray[Any], workers: NDArray[np.int32]
) -> Iterator[tuple[int, int, int, int]]:
    """Yield (row, lane, start, stop) by start; overlapping rows of a worker get different lanes."""
    free: dict[int, list[int]] = {}
    ends: dict[int, list[tuple[int, int]]] = {}
    starts = np.rint(rows["start"] * 1e6).astype(np.int64)
    stops = np.rint(rows["stop"] * 1e6).astype(np.int64)
    for index in np.lexsort((stops, starts)).tolist():
        worker, start, stop = int(workers[index]), int(starts[index]), int(stops[index])
        idle, running = free.setdefault(worker, []), ends.setdefault(worker, [])
        while running and running[0][0] <= start:
            heapq.heappush(idle, heapq.heappop(running)[1])
        lane = heapq.heappop(idle) if idle else len(running)
        heapq.heappush(running, (stop, lane))
        yield index, lane, start, stop


def _counter(changes: NDArray[Any], makespan: float, process: int) -> Iterator[Event]:
    times, levels = changes["time"], np.cumsum(changes["bytes"])
    points: Iterable[tuple[float, int]]
    if len(times) <= _MOST_POINTS:
        points = zip(times.tolist(), levels.tolist(), strict=True)
    else:
        edges = np.linspace(0.0, makespan, _MOST_POINTS + 1)
        top = level_at(levels, highest(times, levels, edges))
        points = zip(edges.tolist(), top.tolist(), strict=False)
    for time, level in points:
        yield {
            "name": "results in memory", "ph": "C", "ts": _microseconds(time), "pid": process,
            "tid": 0, "args": {"bytes": level},
        }  # fmt: skip
