"""A cluster of processes, as a user starts them, whose scheduler can be killed."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_PRELOAD = "benchmarks.restarts.executions"
#: Seconds in which a process must end.
_ENDING = 20.0


class ClusterOfProcesses:
    """A scheduler, with a journal or without, and workers of one thread.

    Parameters
    ----------
    directory
        For logs, the journal and the workers' files.
    workers
        Their number.
    journal
        Whether the scheduler keeps a journal.
    """

    def __init__(self, directory: Path, workers: int, *, journal: bool = True) -> None:
        self.directory = directory
        self.journal = directory / "journal"
        self.address = free_address("127.0.0.1")
        self._options = ["--preload", "dask_marsched"]
        if journal:
            self._options += ["--marsched-journal", str(self.journal)]
        self._count = workers
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> ClusterOfProcesses:
        self.start_scheduler()
        self.start_workers(self._count)
        return self

    def __exit__(self, *_: object) -> None:
        for process in (*self._processes, self.scheduler):
            process.send_signal(signal.SIGTERM)
        for process in (*self._processes, self.scheduler):
            end(process)

    def start_scheduler(self) -> None:
        """Start the scheduler at the same address."""
        port = self.address.rpartition(":")[2]
        where = ("--host", "127.0.0.1", "--port", port, "--no-dashboard")
        self.scheduler = self._spawn("scheduler", *where, "--preload", _PRELOAD, *self._options)

    def kill_scheduler(self) -> None:
        """Kill the scheduler."""
        self.scheduler.kill()
        self.scheduler.wait()

    def start_workers(self, count: int) -> subprocess.Popen[bytes]:
        """Start nannies with workers in one process."""
        size = ("--nworkers", str(count), "--nthreads", "1", "--no-dashboard")
        files = ("--local-directory", str(self.directory), "--preload", _PRELOAD)
        self._processes.append(self._spawn("worker", self.address, *size, *files))
        return self._processes[-1]

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """End workers."""
        self._processes.remove(process)
        process.send_signal(signal.SIGTERM)
        end(process)

    def _spawn(self, what: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.directory / f"{what}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "dask", what, *arguments],
                env=environment(),
                stdout=log,
                stderr=log,
                cwd=self.directory,
            )


def environment() -> dict[str, str]:
    """Return the environment of processes of a cluster, whose workers start fast."""
    return {
        **os.environ,
        "PYTHONPATH": python_path(),
        "DASK_DISTRIBUTED__WORKER__MULTIPROCESSING_METHOD": "forkserver",
    }


def python_path() -> str:
    """Return the ``PYTHONPATH`` of processes that run tasks of this package."""
    return os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")])


def free_address(host: str) -> str:
    """Return an address that stays free while a scheduler is away: no connection gets its port."""
    for port in random.SystemRandom().sample(range(20_000, 32_000), 100):
        with socket.socket() as free, contextlib.suppress(OSError):
            free.bind((host, port))
            return f"tcp://{host}:{port}"
    raise OSError(f"no port is free at {host}")


def end(process: subprocess.Popen[bytes], timeout: float = _ENDING) -> None:
    """Wait for a process to end; kill it after so many seconds."""
    try:
        process.wait(timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
