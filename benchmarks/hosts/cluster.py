"""Runs workloads on several hosts: a scheduler, and nannies with workers on each of them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from distributed import Client

from benchmarks.hosts.network_namespaces import SCHEDULER_ADDRESS, Host
from benchmarks.restarts.processes import end, environment, free_address
from dask_marsched.bench import probes
from dask_marsched.bench.cluster import BenchCluster

#: Bytes of a worker of uneven hosts; the last host's have half of it.
_MEMORY = 2 * 2**30
_STOPPED = 0.01  # seconds for which a slow worker stands still, as long as it runs then


class HostsCluster(BenchCluster):
    """A `BenchCluster` whose workers are spread evenly over hosts, on which nothing else runs.

    With ``uneven`` the workers of the last host have half the memory, and half of the time they
    stand still.
    """

    def __init__(self, hosts: Sequence[Host], uneven: bool, *args: Any) -> None:
        super().__init__(*args)
        self._hosts = hosts
        self._uneven = uneven
        self._slow = contextlib.ExitStack()

    def open(self) -> None:
        """Start the cluster; slow workers are as fast as others until it is ready."""
        super().open()
        if self._uneven:
            last = f"tcp://{self._hosts[-1].address}:"
            slow = [pid for worker, pid in self.pids.items() if worker.startswith(last)]
            self._slow.enter_context(_HalfSpeed(slow))

    def close(self) -> None:
        """Close the cluster."""
        self._slow.close()
        super().close()

    def _start(self) -> Client:
        limits = [self.setting.memory_limit] * len(self._hosts)
        if self._uneven:
            limits = [str(_MEMORY)] * (len(self._hosts) - 1) + [str(_MEMORY // 2)]
        self.cluster = _Processes(self._hosts, limits, self.setting)
        return Client(self.cluster.address, set_as_default=False)

    def _cpu(self) -> float:
        return super()._cpu() + probes.cpu_seconds(self.cluster.pids, own=False)

    def _scheduler_cpu(self) -> float:
        return probes.cpu_seconds(self.cluster.pids[:1])


class _HalfSpeed(probes.Background):
    """Stops processes half of the time."""

    def __init__(self, pids: Sequence[int]) -> None:
        super().__init__()
        self._pids = pids
        self._signal = signal.SIGSTOP

    def _turn(self) -> float:
        self._send(self._signal)
        self._signal = signal.SIGCONT if self._signal == signal.SIGSTOP else signal.SIGSTOP
        return _STOPPED

    def _send(self, what: signal.Signals) -> None:
        for pid in self._pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, what)

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._send(signal.SIGCONT)


class _Processes:
    """The processes of a cluster, as ``dask scheduler`` and ``dask worker`` start them."""

    def __init__(self, hosts: Sequence[Host], limits: Sequence[str], setting: Any) -> None:
        self.address = free_address(SCHEDULER_ADDRESS)
        self._directory = tempfile.TemporaryDirectory(prefix="hosts-")
        self._processes: list[subprocess.Popen[bytes]] = []
        port = self.address.rpartition(":")[2]
        self._spawn([], "scheduler", "--host", SCHEDULER_ADDRESS, "--port", port, "--no-dashboard")
        for host, limit in zip(hosts, limits, strict=True):
            self._spawn(
                host.command([]),
                "worker", self.address, "--host", host.address, "--no-dashboard",
                "--nworkers", str(setting.workers // len(hosts)),
                "--nthreads", str(setting.threads),
                "--memory-limit", limit,
                "--local-directory", self._directory.name,
            )  # fmt: skip

    @property
    def pids(self) -> list[int]:
        """The processes of the scheduler, which is the first, and of the nannies."""
        return [process.pid for process in self._processes]

    def close(self, timeout: float) -> None:
        """End the processes; kill those that take too long."""
        for process in reversed(self._processes):
            process.send_signal(signal.SIGTERM)
        for process in reversed(self._processes):
            end(process, timeout)
        with contextlib.suppress(OSError):  # of a worker that was killed
            self._directory.cleanup()

    def _spawn(self, where: Sequence[str], *arguments: str) -> None:
        command = [*where, sys.executable, "-m", "dask", *arguments]
        with Path(self._directory.name, "log").open("ab") as log:
            self._processes.append(
                subprocess.Popen(command, env=environment(), stdout=log, stderr=log)
            )
