"""Runs workloads on several hosts: a scheduler, and nannies with workers on each of them."""

from __future__ import annotations

import contextlib
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
from dask_marsched.bench.cluster import BenchCluster


class HostsCluster(BenchCluster):
    """A `BenchCluster` whose workers are spread evenly over hosts, on which nothing else runs."""

    def __init__(self, hosts: Sequence[Host], *args: Any) -> None:
        super().__init__(*args)
        self._hosts = hosts

    def _start(self) -> Client:
        self.cluster = _Processes(self._hosts, self.setting)
        return Client(self.cluster.address, set_as_default=False)


class _Processes:
    """The processes of a cluster, as ``dask scheduler`` and ``dask worker`` start them."""

    def __init__(self, hosts: Sequence[Host], setting: Any) -> None:
        self.address = free_address(SCHEDULER_ADDRESS)
        self._directory = tempfile.TemporaryDirectory(prefix="hosts-")
        self._processes: list[subprocess.Popen[bytes]] = []
        port = self.address.rpartition(":")[2]
        self._spawn([], "scheduler", "--host", SCHEDULER_ADDRESS, "--port", port, "--no-dashboard")
        for host in hosts:
            self._spawn(
                host.command([]),
                "worker", self.address, "--host", host.address, "--no-dashboard",
                "--nworkers", str(setting.workers // len(hosts)),
                "--nthreads", str(setting.threads),
                "--memory-limit", setting.memory_limit,
                "--local-directory", self._directory.name,
            )  # fmt: skip

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
