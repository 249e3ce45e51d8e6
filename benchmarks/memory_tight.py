"""Runs workloads whose live data is several times the cluster's memory.

Each run has a cluster of its own: two workers with two threads and 500 MB each, chunks of 32 MB.
Beside stock Dask runs stock Dask with thresholds set as one would set them by hand for this.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import dask
import dask.array as da
import psutil
from distributed import Client, LocalCluster
from distributed.core import Status

from dask_marsched.bench.metrics import geometric_mean, median, ratio
from dask_marsched.bench.probes import Background, proportional_set_size

WORKERS, THREADS = 2, 2
MEMORY_LIMIT = 500_000_000  # bytes for each worker
SIDE = 2_000  # a chunk is a square of float64 with this side: 32 MB
LONG_PAUSE = 1.0  # seconds

#: Thresholds of distributed, by contestant; and the options of our plugin, None without it.
CONTESTANTS: dict[str, tuple[dict[str, Any], dict[str, Any] | None]] = {
    "stock": ({}, None),
    "tuned": (
        {"distributed.worker.memory.target": 0.455, "distributed.worker.memory.spill": 0.55},
        None,
    ),
    "default": ({}, {}),
    "shared": ({}, {"store.shared": True}),
}
#: Those that run where nothing else is asked for.
COMPARED = ("stock", "tuned", "default")


def _array(rows: float, columns: float) -> Any:
    """Return an array of so many chunks of 32 MB."""
    shape = (max(round(rows), 1) * SIDE, max(round(columns), 1) * SIDE)
    return da.random.default_rng(1).random(shape, chunks=(SIDE, SIDE))


def _anomaly(size: float) -> Any:
    x = _array(8 * size, 8).persist()
    return (x - x.mean(0)).std()


def _rechunk(size: float) -> Any:
    x = _array(8 * size, 8)
    return (x.rechunk((SIDE // 4, 4 * SIDE)) + 1).std()


def _narrowed(size: float) -> Any:
    # Each result reads a whole column of chunks, and takes 67 MB before anything is done with it.
    x = _array(7 * size, 7 * size)
    return (x.rechunk((x.shape[0], 3 * SIDE // 10), method="tasks") + 1).std()


def _transposed(size: float) -> Any:
    x = _array(6 * size, 6 * size)
    return (da.exp(x) * x.T + da.sin(x)).sum()


def _standardised(size: float) -> Any:
    # 3 GB are kept and read twice, in two orders.
    x = _array(10 * size, 10).persist()
    return ((x - x.mean(0)) / x.std(1)[:, None]).max()


def _cumulated(size: float) -> Any:
    # 3 GB are kept, twice: each chunk waits for those above it, and is read again last.
    x = _array(10 * size, 10)
    total = da.cumsum(x, axis=0).persist()
    return (total / total[-1]).mean()


def _smoothed(size: float) -> Any:
    # 3 GB are kept, twice: every chunk needs the edges of its neighbours.
    x = _array(10 * size, 10).persist()
    smooth = x.map_overlap(_mean_of_neighbours, depth=1, boundary="reflect").persist()
    return (smooth - x).std()


def _mean_of_neighbours(block: Any) -> Any:
    inner = block.copy()
    inner[1:-1] = (block[:-2] + block[1:-1] + block[2:]) / 3
    return inner


#: Factor on the number of chunks -> a lazy number. `persist` keeps all of an array.
WORKLOADS: dict[str, Callable[[float], Any]] = {
    "anomaly": _anomaly,
    "rechunk": _rechunk,
    "narrowed": _narrowed,
    "transposed": _transposed,
    "standardised": _standardised,
    "cumulated": _cumulated,
    "smoothed": _smoothed,
}


@dataclass
class TightRun:
    """One run of one workload.

    Attributes
    ----------
    seconds
        Wall time; None where it failed.
    restarts
        Worker processes that were replaced.
    pauses
        How long each pause of a worker lasted, seconds.
    peak
        Largest share of its memory limit that a worker took.
    spilled
        Bytes written to disk; None where a worker died with its count.
    """

    workload: str
    contestant: str
    repetition: int
    seconds: float | None = None
    result: float | None = None
    error: str | None = None
    restarts: int = 0
    pauses: list[float] = field(default_factory=list)
    peak: float = 0.0
    spilled: int | None = None

    @property
    def long_pauses(self) -> int:
        """Number of pauses of more than a second."""
        return sum(pause > LONG_PAUSE for pause in self.pauses)


class _Watch(Background):
    """Watches the workers of a local cluster from a thread of this process."""

    def __init__(self, cluster: LocalCluster) -> None:
        super().__init__()
        self.cluster = cluster
        self.scheduler: Any = cluster.scheduler
        self.peak = 0
        self.pids: dict[Any, set[int]] = {}
        self.pauses: list[float] = []
        self._paused: dict[str, float] = {}

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self.pauses += [time.monotonic() - since for since in self._paused.values()]

    @property
    def restarts(self) -> int:
        """Processes beyond the first of each nanny."""
        return sum(len(pids) - 1 for pids in self.pids.values())

    def _turn(self) -> float:
        for name, nanny in list(self.cluster.workers.items()):
            pid = nanny.pid
            if pid is not None:
                self.pids.setdefault(name, set()).add(pid)
                self._see(pid)
        self._see_pauses()
        return 0.01

    def _see(self, pid: int) -> None:
        with contextlib.suppress(psutil.Error):
            taken = psutil.Process(pid).memory_info().rss
            if taken > self.peak:
                # Shared pages count once; to find out takes longer, so only at a peak.
                self.peak = max(self.peak, min(taken, proportional_set_size(pid) or taken))

    def _see_pauses(self) -> None:
        now = time.monotonic()
        paused = {
            address
            for address, ws in list(self.scheduler.workers.items())
            if ws.status == Status.paused
        }
        for address in paused - self._paused.keys():
            self._paused[address] = now
        for address in self._paused.keys() - paused:
            self.pauses.append(now - self._paused.pop(address))


def _written(dask_worker: Any) -> int:
    """Return the bytes that a worker wrote to disk. To be run there."""
    return int(dask_worker.data.cumulative_metrics["disk-write", "bytes"])


@contextlib.contextmanager
def _cluster(contestant: str, memory_limit: int) -> Iterator[tuple[LocalCluster, Client]]:
    config, options = CONTESTANTS[contestant]
    with (
        dask.config.set(config),
        LocalCluster(
            n_workers=WORKERS,
            threads_per_worker=THREADS,
            memory_limit=memory_limit,
            dashboard_address=":0",
            silence_logs=logging.CRITICAL,
        ) as cluster,
        Client(cluster) as client,
    ):
        if options is not None:
            from dask_marsched import MarsSchedulerPlugin
            from dask_marsched.config import Settings

            settings = Settings.from_config(options)
            client.register_plugin(MarsSchedulerPlugin(settings=settings))
        # What is imported by the first task would count as its memory.
        client.run(lambda: __import__("dask.array"))
        yield cluster, client


def measure(
    workload: str,
    contestant: str,
    repetition: int,
    size: float,
    timeout: float,
    memory_limit: int = MEMORY_LIMIT,
) -> TightRun:
    """Run a workload once on a cluster of its own. A run that fails is a measurement too.

    Parameters
    ----------
    workload, contestant
        Names in `WORKLOADS` and `CONTESTANTS`.
    repetition
        Number of the run.
    size
        Factor on the number of chunks.
    timeout
        Seconds after which the run counts as failed.
    memory_limit
        Of each worker, bytes.
    """
    run = TightRun(workload, contestant, repetition)
    with _cluster(contestant, memory_limit) as (cluster, client):
        with _Watch(cluster) as watch:
            start = time.monotonic()
            try:
                future = client.compute(WORKLOADS[workload](size))
                run.result = float(future.result(timeout=timeout))
                run.seconds = time.monotonic() - start
            except Exception as error:  # a cluster without memory fails in many ways
                run.error = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        run.restarts, run.pauses = watch.restarts, [round(p, 2) for p in watch.pauses]
        run.peak = watch.peak / memory_limit
        if not run.restarts and not run.error:
            run.spilled = sum(client.run(_written).values())
    return run


def check_names(names: Sequence[str], contestants: Sequence[str]) -> None:
    """Raise ValueError where the name of a workload or contestant is unknown."""
    for what, given, known in (
        ("workload", names, WORKLOADS),
        ("policy", contestants, CONTESTANTS),
    ):
        unknown = [name for name in given if name not in known]
        if unknown:
            raise ValueError(f"no {what} {unknown[0]!r}; there are {', '.join(known)}")


def measure_all(
    names: Sequence[str],
    repeat: int,
    size: float,
    timeout: float,
    progress: Callable[[TightRun], None],
    contestants: Sequence[str] = COMPARED,
    memory_limit: int = MEMORY_LIMIT,
) -> list[TightRun]:
    """Run workloads under each contestant, alternating.

    Parameters
    ----------
    names
        Names in `WORKLOADS`; none for all.
    repeat
        How often.
    size, timeout
        As for `measure`.
    progress
        Called after each run.
    contestants
        Names in `CONTESTANTS`.
    memory_limit
        Of each worker, bytes.

    Raises
    ------
    ValueError
        A name is unknown; the message lists those there are.
    """
    check_names(names, contestants)
    runs = []
    for repetition in range(repeat):
        for workload in names or WORKLOADS:
            for contestant in contestants:
                runs.append(measure(workload, contestant, repetition, size, timeout, memory_limit))
                progress(runs[-1])
    return runs


def cells(runs: Iterable[TightRun]) -> list[list[str]]:
    """Return the table: a line for each workload and contestant, ratios to the better stock."""
    by: dict[tuple[str, str], list[TightRun]] = {}
    for run in runs:
        by.setdefault((run.workload, run.contestant), []).append(run)
    table = [_TITLES]
    ratios: list[list[float | None]] = []
    for workload in dict.fromkeys(name for name, _ in by):
        stocks = [by.get((workload, name), []) for name in ("stock", "tuned")]
        best = [
            min((m for s in stocks if (m := _typical(s, what)) is not None), default=None)
            for what in ("seconds", "spilled")
        ]
        for contestant in CONTESTANTS:
            found = by.get((workload, contestant), [])
            if found:
                table.append(_line(workload, contestant, found, best))
                if contestant == "default":  # what is proposed
                    own = (_typical(found, "seconds"), _typical(found, "spilled"))
                    ratios.append([ratio(a, b) for a, b in zip(own, best, strict=True)])
    means = [geometric_mean(r for line in ratios if (r := line[i]) is not None) for i in (0, 1)]
    return [*table, ["geometric mean", "default", "", _x(means[0]), *[""] * 4, "", _x(means[1])]]


_TITLES = [
    "workload", "policy", "s", "x", "failed", "restarts", "long pauses", "peak", "spilled MB", "x",
]  # fmt: skip


def _line(
    workload: str, contestant: str, runs: list[TightRun], best: list[float | None]
) -> list[str]:
    seconds, spilled = _typical(runs, "seconds"), _typical(runs, "spilled")
    return [
        workload,
        contestant,
        "" if seconds is None else f"{seconds:.1f}",
        _x(ratio(seconds, best[0])),
        f"{sum(run.error is not None for run in runs)}/{len(runs)}",
        str(sum(run.restarts for run in runs)),
        str(sum(run.long_pauses for run in runs)),
        f"{max(run.peak for run in runs):.0%}",
        "" if spilled is None else f"{spilled / 1e6:.0f}",
        _x(ratio(spilled, best[1])),
    ]


def _typical(runs: Iterable[TightRun], what: str) -> float | None:
    # Of runs that failed or lost a worker there is nothing to compare.
    return median(getattr(run, what) for run in runs if getattr(run, what) is not None)


def _x(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def to_json(runs: Iterable[TightRun]) -> dict[str, Any]:
    """Return all runs as plain values."""
    return {"memory_limit": MEMORY_LIMIT, "runs": [asdict(run) for run in runs]}
