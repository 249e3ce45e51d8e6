"""Measures a run: bytes between workers, managed memory, PSS, CPU, tasks sent."""

from __future__ import annotations

import abc
import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from distributed import Scheduler, SchedulerPlugin, Worker, WorkerPlugin
from distributed.comm.tcp import TCP

if TYPE_CHECKING:
    from typing_extensions import Self  # Python 3.10 has none

Connection = tuple[str, str]  # this side's address, the peer's address

METER = "bench-traffic"
PROBE = "bench-scheduler-probe"


class Background(abc.ABC):
    """Runs `_turn` periodically in a thread as long as a ``with`` block runs.

    Parameters
    ----------
    first
        Seconds until the first turn.
    """

    def __init__(self, first: float = 0.0) -> None:
        self._first = first
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=type(self).__name__, daemon=True)

    @abc.abstractmethod
    def _turn(self) -> float | None:
        """Do the work; return the seconds until the next turn, None to stop."""

    def _run(self) -> None:
        pause: float | None = self._first
        while pause is not None and not self._stop.wait(pause):
            pause = self._turn()

    @property
    def running(self) -> bool:
        """Whether the thread is at work: it ends with the block, or with an exception."""
        return self._thread.is_alive()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


class TrafficMeter(WorkerPlugin):
    """Counts the bytes that a worker process writes, by connection.

    It counts below every protocol, as on the wire, so that peer-to-peer shuffles are included.
    """

    name = METER

    def setup(self, worker: Worker) -> None:
        """Wrap the write of the transport in this process."""
        self.written: Counter[Connection] = Counter()
        self.original: Any = TCP.write
        TCP.write = self.counting(self.original)  # type: ignore[method-assign]  # to count

    def teardown(self, worker: Worker) -> None:
        """Restore the transport's own write."""
        TCP.write = self.original  # type: ignore[method-assign]  # as it was

    def counting(self, write: Any) -> Any:
        """Return a ``write`` that counts what the given one has written."""

        async def counted(comm: TCP, *args: Any, **kwargs: Any) -> Any:
            connection = (comm.local_address, comm.peer_address)  # unknown once it is closed
            size = await write(comm, *args, **kwargs)
            self.written[connection] += size
            return size

        return counted


def reset_traffic(dask_worker: Worker) -> None:
    """Reset the counts. Runs on the workers."""
    meter: Any = dask_worker.plugins[METER]
    meter.written.clear()


def read_traffic(dask_worker: Worker) -> dict[Connection, int]:
    """Return the bytes written, by connection. Runs on the workers."""
    meter: Any = dask_worker.plugins.get(METER)
    return {} if meter is None else dict(meter.written)  # one that was killed is starting again


def bytes_between_workers(written: Mapping[str, Mapping[Connection, int]]) -> int:
    """Return the bytes that went from one worker to another, from each worker's counts.

    A connection counts if another worker holds its other end. None does for connections to the
    scheduler or to clients, and a worker holds both ends of those to itself.
    """
    holder = {ends: worker for worker, connections in written.items() for ends in connections}
    total = 0
    for worker, connections in written.items():
        for (local, peer), size in connections.items():
            if holder.get((peer, local), worker) != worker:
                total += size
    return total


def read_mapped(dask_worker: Worker) -> int:
    """Return the bytes of results that a worker has mapped instead of fetched. Runs there."""
    plugin: Any = dask_worker.plugins.get("marsched")
    shared = plugin.report().get("shared") if hasattr(plugin, "report") else None
    return int(shared["bytes_by_handle"]) if shared else 0


class SchedulerProbe(SchedulerPlugin):
    """Tracks the peak of all workers' managed memory together, and counts the tasks sent.

    The sum is read after every transition. Replicas arrive without a transition of their own, but
    none leaves before a transition made it superfluous, so the peak is not missed.
    """

    name = PROBE

    def __init__(self) -> None:
        self.peak_managed = 0
        self.tasks_sent = 0
        self.scheduler: Scheduler | None = None

    async def start(self, scheduler: Scheduler) -> None:
        """Keep the scheduler."""
        self.scheduler = scheduler

    def transition(self, key: Any, start: Any, finish: Any, *args: Any, **kwargs: Any) -> None:
        """Read the sum of managed bytes."""
        assert self.scheduler is not None
        if finish == "processing":
            self.tasks_sent += 1
        managed = sum(ws.nbytes for ws in self.scheduler.workers.values())
        if managed > self.peak_managed:
            self.peak_managed = managed


def reset_probe(dask_scheduler: Scheduler) -> None:
    """Start a new measurement. Runs on the scheduler."""
    probe: Any = dask_scheduler.plugins[PROBE]
    probe.peak_managed = probe.tasks_sent = 0


def read_probe(dask_scheduler: Scheduler) -> tuple[int, int]:
    """Return peak managed bytes and tasks sent. Runs on the scheduler."""
    probe: Any = dask_scheduler.plugins[PROBE]
    return probe.peak_managed, probe.tasks_sent


def proportional_set_size(pid: int) -> int:
    """Return the PSS of a process (shared pages by their share), bytes; 0 if it is gone."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return 0
    for line in text.splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


class PssSampler(Background):
    """Samples the summed PSS of processes every `interval` seconds, and keeps the peak."""

    def __init__(self, pids: Iterable[int], interval: float = 0.05) -> None:
        super().__init__()
        self.pids = tuple(pids)
        self.interval = interval
        self.peak = 0
        self.samples = 0
        self.spent = 0.0  #: CPU seconds spent on sampling

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._sample()

    def _turn(self) -> float:
        self._sample()
        return self.interval

    def _sample(self) -> None:
        start = time.thread_time()
        self.peak = max(self.peak, sum(proportional_set_size(pid) for pid in self.pids))
        self.samples += 1
        self.spent += time.thread_time() - start


def cpu_seconds(pids: Iterable[int], own: bool = True) -> float:
    """Return the CPU seconds of processes so far, of this one too if ``own``; user and system."""
    total = time.process_time() if own else 0.0
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            times = psutil.Process(pid).cpu_times()
            total += times.user + times.system
    return total
