"""Runs mixed work on two hosts while processes die and stop, and networks are cut.

Scheduler, nannies and workers are processes as a user starts them. Every result is compared with
the expected one. A computation that takes too long counts as hung, and the state of the cluster is
saved. At the end leaks and the growth of memory are reported.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from distributed.utils import TimeoutError as DaskTimeoutError

from benchmarks.chaos import computations, resource_watch, soak
from benchmarks.chaos.fault_injection import KILL_EVERY, FaultInjector
from benchmarks.hosts import network_namespaces
from benchmarks.restarts.processes import free_address, python_path
from dask_marsched import Client

#: Time without a heartbeat after which a worker is lost: less than the longest stop.
_TTL = "30s"
_MEMORY_LIMIT = "500MB"
_WORKERS_OF_HOST = 2
#: Concurrent computations.
_STREAMS = 2
#: All parts that faults can affect are on.
SETTINGS: dict[str, Any] = {
    "quota.enabled": True,
    "store.shared": True,
    "failover.adopt": "all",
    "retries.infrastructure": 5,
    "cancelling.interrupt": True,
}
_STARTING = 60.0


@dataclass
class Chaos(soak.Soak):
    """The outcome of `soak.Soak`, and more.

    Attributes
    ----------
    stops, cuts, disconnects, restarts
        Processes that were stopped for a while, cuts of the network between the hosts, broken
        connections between a worker and the scheduler, and kills of the latter.
    hung
        Computations that took longer than `computations.PATIENCE`, each with the file that holds
        the state of the cluster.
    samples
        See `resource_watch.Sample`.
    done
        Number of correct computations by kind.
    totals
        The plugin's report of its recoveries.
    exceptions
        Exceptions of the plugin's own, by hook.
    """

    stops: int = 0
    cuts: int = 0
    disconnects: int = 0
    restarts: int = 0
    hung: list[str] = field(default_factory=list)
    samples: list[resource_watch.Sample] = field(default_factory=list)
    done: dict[str, int] = field(default_factory=dict)
    totals: dict[str, Any] = field(default_factory=dict)
    exceptions: dict[str, int] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether no fault was found."""
        return super().passed and not (self.hung or self.exceptions)


class Cluster:
    """A scheduler, and two hosts (or one) with two workers each, or four."""

    def __init__(
        self, scheduler: str, directory: Path, hosts: list[network_namespaces.Host]
    ) -> None:
        self.hosts = hosts
        self.directory = directory
        self.processes: list[subprocess.Popen[bytes]] = []
        self.address = free_address(scheduler)

    def start_scheduler(self) -> None:
        """Start the scheduler, with its journal, or start it again."""
        host, _, port = self.address.removeprefix("tcp://").rpartition(":")
        plugin = [
            "--preload",
            "dask_marsched",
            "--marsched-journal",
            str(self.directory / "journal"),
        ]
        for name, value in SETTINGS.items():
            plugin += ["--marsched-config", f"{name}={value}"]
        self.scheduler = self._spawn(
            "scheduler", ["--host", host, "--port", port, "--no-dashboard"], extra=plugin
        )

    def restart_scheduler(self) -> None:
        """Kill the scheduler, and start it again."""
        self.scheduler.kill()
        self.scheduler.wait()
        self.processes.remove(self.scheduler)
        self.start_scheduler()

    def start(self) -> str:
        """Start the processes; return the scheduler's address."""
        self.start_scheduler()
        common = [self.address, "--nthreads", "1", "--memory-limit", _MEMORY_LIMIT]
        common += ["--no-dashboard", "--local-directory", str(self.directory)]
        # If two threads of a new worker import it at once, the import fails, and worker and nanny
        # close: in stock Dask too.
        common += ["--preload", "dask.dataframe"]
        if self.hosts:
            for host in self.hosts:
                own = ["--nworkers", str(_WORKERS_OF_HOST), "--host", host.address]
                self._spawn("worker", common, extra=own, host=host)
        else:
            self._spawn("worker", common, extra=["--nworkers", str(2 * _WORKERS_OF_HOST)])
        return self.address

    def _spawn(
        self,
        what: str,
        arguments: list[str],
        extra: list[str],
        host: network_namespaces.Host | None = None,
    ) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", f"distributed.cli.dask_{what}", *arguments, *extra]
        if host is not None:
            command = host.command(command)
        environment = {
            **os.environ,
            "PYTHONPATH": python_path(),
            # Tasks are not to blame for their dead workers.
            "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "1000000",
            "DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": _TTL,
            # By default Dask keeps events of lost workers for an hour, which would hide other
            # growth.
            "DASK_DISTRIBUTED__SCHEDULER__EVENTS_CLEANUP_DELAY": "1m",
            "DASK_TEMPORARY_DIRECTORY": str(self.directory),
            # New processes start fast, so that the test does not depend on import times.
            "DASK_DISTRIBUTED__WORKER__MULTIPROCESSING_METHOD": "forkserver",
        }
        log = (self.directory / f"{what}-{len(self.processes)}.log").open("ab")
        with log:
            process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, cwd=self.directory
            )
        self.processes.append(process)
        return process

    def stop(self) -> list[str]:
        """End the processes as a user does; return those that had to be killed."""
        killed = []
        workers = [process for process in self.processes if process is not self.scheduler]
        for process in workers:
            process.send_signal(signal.SIGTERM)
        for process in (*workers, self.scheduler):
            if process is self.scheduler:
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(_STARTING)
            except subprocess.TimeoutExpired:
                killed.append(f"process {process.pid} does not end")
                process.kill()
                process.wait()
        return killed


def run(
    seconds: float,
    *,
    every: float = KILL_EVERY,
    names: tuple[str, ...] = tuple(computations.WORK),
    seed: int = 0,
    dumps: Path | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Chaos:
    """Compute and inject faults for a while, then look for leaks.

    Parameters
    ----------
    seconds
        Duration, at least until a worker was killed; running computations then finish.
    every
        Mean time between two kills, seconds; stops, cuts and kills of the scheduler in proportion.
    names
        Kinds of computations, of `computations.WORK`.
    seed
        Of the choice of computations and faults.
    dumps
        Directory for logs, and for the state of the cluster when a computation hangs.
    progress
        Called with a line after each computation.
    """
    outcome = Chaos()
    dumps = dumps or Path(tempfile.mkdtemp(prefix="chaos-"))
    dumps.mkdir(parents=True, exist_ok=True)
    for name in names:
        for variant in range(computations.VARIANTS):
            computations.expected(name, variant)
    with contextlib.ExitStack() as stack:
        inside = network_namespaces.is_inside()
        hosts = stack.enter_context(network_namespaces.hosts(2)) if inside else []
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chaos-")))
        networks = {os.readlink("/proc/self/ns/net"), *(host.network for host in hosts)}
        before = soak.Traces(networks)
        start = time.monotonic()
        scheduler = network_namespaces.SCHEDULER_ADDRESS if inside else "127.0.0.1"
        cluster = Cluster(scheduler, scratch, hosts)
        try:
            with _client(cluster) as client:
                _compute_with_faults(
                    outcome, client, cluster, seconds, every, names, seed, dumps, progress
                )
                try:
                    client.wait_for_workers(2 * _WORKERS_OF_HOST, timeout=_STARTING)
                except (TimeoutError, DaskTimeoutError) as error:
                    outcome.left.append(f"workers did not come back: {error}")
                outcome.left += resource_watch.quiet(client)
        finally:
            outcome.left += cluster.stop()
            outcome.seconds = time.monotonic() - start
            for log in scratch.glob("*.log"):
                log.rename(dumps / log.name)
            for file in (scratch / "journal").glob("*"):
                file.unlink()
        outcome.left += soak.left(before, scratch, networks)
    return outcome


@contextlib.contextmanager
def _client(cluster: Cluster) -> Iterator[Client]:
    with Client(cluster.start(), timeout=_STARTING) as client:
        client.wait_for_workers(2 * _WORKERS_OF_HOST, timeout=_STARTING)
        yield client


def _compute_with_faults(
    outcome: Chaos,
    client: Client,
    cluster: Cluster,
    seconds: float,
    every: float,
    names: tuple[str, ...],
    seed: int,
    dumps: Path,
    progress: Callable[[str], None],
) -> None:
    watch = resource_watch.ResourceWatch(
        client, lambda: cluster.scheduler.pid, [p.pid for p in cluster.processes[1:]], dumps
    )
    end = time.monotonic() + seconds
    restart = cluster.restart_scheduler
    rng = random.Random(seed)
    with FaultInjector(client, cluster.hosts, restart, rng, every) as injector, watch:
        # A run without a kill tests nothing.
        def goes_on() -> bool:
            if not (injector.running and watch.running):
                return False
            return time.monotonic() < end or not injector.counts["kill"]

        streams = [
            threading.Thread(
                target=_stream,
                args=(outcome, client, goes_on, names, random.Random(f"{seed}-{i}"), dumps),
                kwargs={"progress": progress, "log": injector.log},
                name=f"stream-{i}",
            )
            for i in range(_STREAMS)
        ]
        for stream in streams:
            stream.start()
        for stream in streams:
            stream.join()
        for part in (injector, watch):
            if not part.running:
                outcome.failed.append(f"{type(part).__name__} has failed, see its traceback")
    for what in ("kill", "stop", "cut", "disconnect", "restart"):
        setattr(outcome, f"{what}s", injector.counts[what])
    outcome.samples = watch.samples
    outcome.totals, outcome.exceptions = resource_watch.own_report(client)
    outcome.left += watch.faults
    (dumps / "faults.log").write_text("\n".join(injector.log))


def _stream(
    outcome: Chaos,
    client: Client,
    goes_on: Callable[[], bool],
    names: tuple[str, ...],
    rng: random.Random,
    dumps: Path,
    *,
    progress: Callable[[str], None],
    log: list[str],
) -> None:
    """Run one computation after the other, and compare the results."""
    while goes_on():
        name, variant = rng.choice(names), rng.randrange(computations.VARIANTS)
        began = time.monotonic()
        try:
            result = computations.WORK[name](client, variant)
        except (TimeoutError, DaskTimeoutError):
            path = dumps / f"hang-{len(outcome.hung)}.txt"
            path.write_text(resource_watch.state(client) + "\n" + "\n".join(log[-30:]))
            outcome.hung.append(f"{name}: see {path}")
            progress(f"HUNG {outcome.hung[-1]}")
            continue
        except Exception as error:  # any error is a finding
            told = " ".join(f"{name}: {type(error).__name__}: {error}".split())[:300]
            outcome.failed.append(told)
            progress(f"FAILED {told}; {log[-3:]}")
            continue
        seconds = time.monotonic() - began
        outcome.computed += 1
        right = computations.expected(name, variant)
        # NumPy adds an unaligned array in another order, and Dask's transfers may unalign one.
        if not np.allclose(result, right, rtol=1e-12, atol=0):
            outcome.wrong.append(f"{name}: {result!r} instead of {right!r}")
            progress(f"WRONG {outcome.wrong[-1]}")
        else:
            outcome.done[name] = outcome.done.get(name, 0) + 1
            progress(f"{name}: {seconds:.1f} s")


def cells(chaos: Chaos) -> list[list[str]]:
    """Return the table."""
    slope = resource_watch.slope(chaos.samples)
    ours = [chaos.samples[i].plugin / 2**20 for i in (len(chaos.samples) // 2, -1) if chaos.samples]
    return [
        [
            "seconds", "kills", "stops", "cuts", "disconnects", "restarts", "computed", "wrong",
            "failed", "hung", "left behind", "scheduler MiB", "MiB per hour", "of the plugin",
        ],
        [
            f"{chaos.seconds:.0f}",
            *map(str, (chaos.kills, chaos.stops, chaos.cuts, chaos.disconnects)),
            *map(str, (chaos.restarts, chaos.computed)),
            *map(str, map(len, (chaos.wrong, chaos.failed, chaos.hung, chaos.left))),
            f"{chaos.samples[-1].scheduler / 2**20:.0f}" if chaos.samples else "-",
            "-" if slope is None else f"{slope / 2**20:+.1f}",
            ", ".join(f"{mib:.1f}" for mib in ours) or "-",
        ],
    ]  # fmt: skip
