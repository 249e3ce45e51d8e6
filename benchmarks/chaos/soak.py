"""Runs mixed work while worker processes are killed at random, then looks for leaks.

The workers have little memory, so that they spill and share all the time. Leaks are shared memory,
files, descriptors and processes.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import math
import os
import random
import signal
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dask
import psutil
from distributed import Client, LocalCluster
from distributed.core import Status

from benchmarks import memory_tight
from dask_marsched.bench.probes import Background

#: Mean time between two kills, seconds: 200 of them in an hour.
KILL_EVERY = 18.0
#: Factors on the number of chunks of the workloads of `memory_tight`.
SIZES = (0.25, 0.5, 0.75)
#: Timeout of a computation, seconds; a longer one counts as hung.
PATIENCE = 300.0
#: Seconds in which processes must end after their cluster was closed.
_ENDING = 15.0
#: Files that distributed itself leaves in its scratch space.
_LOCKS = (".lock", ".dirlock")


@dataclass
class Soak:
    """The outcome of a run.

    Attributes
    ----------
    seconds
        Duration.
    kills
        Worker processes that were killed.
    computed
        Finished computations.
    wrong
        Those whose result differs from that without a cluster.
    failed
        Errors of the others.
    left
        Descriptions of leaks.
    """

    seconds: float = 0.0
    kills: int = 0
    computed: int = 0
    wrong: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether no fault was found."""
        return not (self.wrong or self.failed or self.left)


#: Environment variable that marks this process and all that it starts, orphans included.
_MARK = "MARSCHED_TRACES"


class Traces:
    """Resources that this process and its descendants hold at one moment.

    Parameters
    ----------
    networks
        Network namespaces whose processes are searched for shared memory; by default all.
    """

    def __init__(self, networks: Collection[str] = ()) -> None:
        gc.collect()
        os.environ[_MARK] = str(os.getpid())
        self.segments = _segments(networks)
        # Semaphores of any process have a name there for a moment.
        self.shared = {n for n in os.listdir("/dev/shm") if not n.startswith("sem.")}
        self.descriptors = len(os.listdir("/proc/self/fd"))
        self.children = {child.pid for child in psutil.Process().children(recursive=True)}

    def since(self, before: Traces, files: Path) -> list[str]:
        """Return descriptions of new resources, and the paths of all files in a directory."""
        found = [f"shared memory: {name}" for name in sorted(self.segments - before.segments)]
        found += [f"/dev/shm/{name}" for name in sorted(self.shared - before.shared)]
        found += [f"process {pid}" for pid in sorted(self.children - before.children)]
        if self.descriptors > before.descriptors:
            found.append(f"{self.descriptors - before.descriptors} descriptors")
        there = (path for path in files.rglob("*") if path.is_file())
        return found + [str(path) for path in sorted(there) if not path.name.endswith(_LOCKS)]


def _segments(networks: Collection[str]) -> set[str]:
    """Return the segments of shared memory that our processes have open or mapped, by inode."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        if not _is_ours(process) or (networks and _network(process) not in networks):
            continue
        with contextlib.suppress(OSError):
            for link in (process / "fd").iterdir():
                with contextlib.suppress(OSError):
                    if "memfd:dask-marsched" in os.readlink(link):
                        found.add(str(link.stat().st_ino))
        with contextlib.suppress(OSError):
            for line in (process / "maps").read_text().splitlines():
                if "memfd:dask-marsched" in line:
                    found.add(line.split()[4])
    return found


def _is_ours(process: Path) -> bool:
    mark = f"{_MARK}={os.getpid()}".encode()
    try:
        return process.name == str(os.getpid()) or mark in (process / "environ").read_bytes().split(
            b"\0"
        )
    except OSError:
        return False


def _network(process: Path) -> str:
    try:
        return os.readlink(process / "ns" / "net")
    except OSError:
        return ""


class _Killer(Background):
    """Kills worker processes of a local cluster at random from a thread.

    It spares workers that are starting, whose nanny would give up, in stock Dask too.
    """

    def __init__(
        self, cluster: LocalCluster, every: float, most: float, rng: random.Random
    ) -> None:
        super().__init__(first=rng.expovariate(1 / every))
        self.cluster = cluster
        self.every = every
        self.most = most
        self.rng = rng
        self.kills = 0

    def _turn(self) -> float | None:
        nannies = list(self.cluster.workers.values())
        pids = [n.pid for n in nannies if n.pid and n.status == Status.running]
        if pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.rng.choice(pids), signal.SIGKILL)
                self.kills += 1
        return self.rng.expovariate(1 / self.every) if self.kills < self.most else None


@contextlib.contextmanager
def _cluster(workers: int, threads: int) -> Iterator[tuple[LocalCluster, Client]]:
    from dask_marsched import MarsSchedulerPlugin

    with (
        # Tasks are not to blame for their dead workers; and a cluster that gave up replaced
        # workers would end without any.
        dask.config.set(
            {
                "distributed.scheduler.allowed-failures": 1_000_000,
                "distributed.deploy.lost-worker-timeout": "1 day",
            }
        ),
        LocalCluster(
            n_workers=workers,
            threads_per_worker=threads,
            memory_limit=memory_tight.MEMORY_LIMIT,
            dashboard_address=":0",
            silence_logs=logging.CRITICAL,
        ) as cluster,
        Client(cluster) as client,
    ):
        client.register_plugin(MarsSchedulerPlugin())
        yield cluster, client


class _Expected:
    """Expected results, each computed once by threads of this process."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, float], float] = {}

    def __call__(self, name: str, size: float) -> float:
        if (name, size) not in self._found:
            with dask.config.set(scheduler="threads"):
                lazy = memory_tight.WORKLOADS[name](size)
                self._found[name, size] = float(lazy.compute())
        return self._found[name, size]


def run(
    seconds: float,
    *,
    workers: int,
    threads: int,
    every: float = KILL_EVERY,
    most_kills: float = math.inf,
    names: Sequence[str] = tuple(memory_tight.WORKLOADS),
    sizes: Sequence[float] = SIZES,
    seed: int = 0,
    progress: Callable[[str], None] = lambda text: None,
) -> Soak:
    """Compute and kill for a while, then look for leaks.

    Parameters
    ----------
    seconds
        Duration, at least until a worker was killed; the running computation then finishes.
    workers, threads
        Worker processes, and threads of each.
    every
        Mean time between two kills, seconds.
    most_kills
        Upper bound on the kills.
    names, sizes
        Names in `memory_tight.WORKLOADS`, and factors on the number of chunks.
    seed
        Of the choice of computations and victims.
    progress
        Called after each computation.
    """
    choices = [(name, size) for name in names for size in sizes]
    soak = Soak()
    with tempfile.TemporaryDirectory(prefix="soak-") as scratch:
        with dask.config.set({"temporary-directory": scratch}):
            # A first cluster opens resources that stay for good.
            with _cluster(1, 1) as (_, client):
                client.submit(sum, [1]).result()
            before = Traces()
            start = time.monotonic()
            with _cluster(workers, threads) as (cluster, client):
                with _Killer(cluster, every, most_kills, random.Random(seed)) as killer:
                    # A run without a kill tests nothing.
                    def goes_on(killer: _Killer = killer, end: float = start + seconds) -> bool:
                        return time.monotonic() < end or not killer.kills

                    _compute(soak, client, goes_on, choices, random.Random(seed), progress)
                soak.kills = killer.kills
            soak.seconds = time.monotonic() - start
        soak.left = left(before, Path(scratch))
    return soak


def _compute(
    soak: Soak,
    client: Client,
    goes_on: Callable[[], bool],
    choices: list[tuple[str, float]],
    rng: random.Random,
    progress: Callable[[str], None],
) -> None:
    expected = _Expected()
    while goes_on():
        name, size = rng.choice(choices)
        what = f"{name} x {size:g}"
        began = time.monotonic()
        try:
            future: Any = client.compute(memory_tight.WORKLOADS[name](size))
            result = float(future.result(timeout=PATIENCE))
        except Exception as error:  # any error is a finding
            soak.failed.append(" ".join(f"{what}: {type(error).__name__}: {error}".split())[:200])
            progress(f"FAILED {soak.failed[-1]}")
            continue
        finally:
            future = None  # release it before the next one exists
        seconds = time.monotonic() - began
        soak.computed += 1
        right = expected(name, size)
        if not math.isclose(result, right, rel_tol=1e-12):
            soak.wrong.append(f"{what}: {result!r} instead of {right!r}")
        progress(f"{what}: {seconds:.1f} s")


def left(before: Traces, files: Path, networks: Collection[str] = ()) -> list[str]:
    """Return the leaks once processes have had time to end."""
    end = time.monotonic() + _ENDING
    while (found := Traces(networks).since(before, files)) and time.monotonic() < end:
        time.sleep(0.2)
    return found


def cells(soak: Soak) -> list[list[str]]:
    """Return the table."""
    return [
        ["seconds", "kills", "computed", "wrong", "failed", "left behind"],
        [
            f"{soak.seconds:.0f}",
            str(soak.kills),
            str(soak.computed),
            str(len(soak.wrong)),
            str(len(soak.failed)),
            str(len(soak.left)),
        ],
    ]
