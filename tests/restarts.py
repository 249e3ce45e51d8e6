"""A cluster of processes whose scheduler is killed and started again."""

import contextlib
import os
import signal
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from tests.processes import Process, dask_command, running


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


class RestartableCluster:
    """Workers, and a scheduler with a journal; tasks tell in ``directory`` that they ran.

    The scheduler has ``more`` options, and variables in its ``environment``.
    """

    def __init__(
        self,
        start: Callable[..., Process],
        directory: Path,
        environment: Mapping[str, str],
        more: Sequence[str],
    ) -> None:
        self._start = start
        self._environment = environment
        self._more = more
        self.directory = directory
        self.port = free_port()
        self.address = f"tcp://127.0.0.1:{self.port}"
        self.scheduler: Process | None = None
        self.workers: list[Process] = []
        for name in ("begun", "gate"):
            os.mkfifo(directory / name)

    def options(self) -> list[str]:
        place = str(self.directory / "journal")
        return [
            *("--host", "127.0.0.1", "--port", str(self.port), "--no-dashboard"),
            *("--preload", "dask_marsched", "--marsched-journal", place),
        ]

    def start_scheduler(self, *more: str) -> None:
        command = dask_command("scheduler", *self.options(), *self._more, *more)
        self.scheduler = self._start(*command, env=self._environment)

    def start_worker(self, name: str, *more: str) -> None:
        options = ("--nthreads", "1", "--no-dashboard", "--name", name, *more)
        where = ("--local-directory", str(self.directory))
        self.workers.append(self._start(*dask_command("worker", self.address, *options, *where)))

    def run(self, *command: str) -> Process:
        return self._start(*dask_command(*command))

    def kill_scheduler(self) -> None:
        self.scheduler.kill()

    def ran(self) -> Counter[str]:
        """Return how often each task ran."""
        log = self.directory / "ran"
        return Counter(log.read_text().splitlines()) if log.exists() else Counter()

    # --- tasks ----------------------------------------------------------------------------

    def logged(self) -> Callable[[int], int]:
        return Logged(str(self.directory))

    def gated(self) -> Callable[[int], int]:
        return Gated(str(self.directory))

    def wait_until_begun(self) -> None:
        """Wait until a gated task runs."""
        assert (self.directory / "begun").read_text()

    def open_gate(self) -> None:
        """Let a gated task end."""
        (self.directory / "gate").write_text("open")


class Logged:
    """A function that notes its calls."""

    def __init__(self, directory: str) -> None:
        self.directory = directory

    def __call__(self, x):
        log = os.open(f"{self.directory}/ran", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(log, f"{x}\n".encode())
        os.close(log)
        return x * 2


class Gated(Logged):
    """A function that tells when it has begun, and ends when the gate is opened."""

    def __call__(self, x):
        Path(self.directory, "begun").write_text("begun")
        Path(self.directory, "gate").read_text()
        return super().__call__(x)


@contextlib.contextmanager
def restartable_cluster(
    directory: Path,
    workers: int = 2,
    environment: Mapping[str, str] | None = None,
    more: Sequence[str] = (),
) -> Iterator[RestartableCluster]:
    with running() as start:
        cluster = RestartableCluster(start, directory, environment or {}, more)
        cluster.start_scheduler()
        for i in range(workers):
            cluster.start_worker(f"worker-{i}")
        yield cluster


def kill_worker(pids: tuple[int, int]) -> None:
    """Kill a nanny and then its worker."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
