"""Commands under test as real processes, and small clusters in this one."""

import contextlib
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from distributed import LocalCluster

# A process that begins with this behaves as if dask_marsched were not installed.
WITHOUT_PACKAGE = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "dask_marsched":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocker())
"""

START_TIMEOUT = 60.0  # seconds; a machine with other work to do takes its time to import dask


class Process:
    """A command under test: its output is read as it comes and can be waited for."""

    def __init__(self, args: Sequence[str], environment: Mapping[str, str]) -> None:
        self.args = args
        self.lines: list[str] = []
        self._grown = threading.Condition()
        self._ended = False
        self._process = subprocess.Popen(
            args,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self._process.stdout:
            with self._grown:
                self.lines.append(line.rstrip())
                self._grown.notify_all()
        with self._grown:
            self._ended = True
            self._grown.notify_all()

    @property
    def output(self) -> str:
        with self._grown:
            return "\n".join(self.lines)

    def wait_for(self, pattern: str, timeout: float = START_TIMEOUT) -> re.Match[str]:
        """Return the first match of a pattern in the output, as soon as it is there."""
        deadline = time.monotonic() + timeout
        with self._grown:
            while True:
                for line in self.lines:
                    if match := re.search(pattern, line):
                        return match
                left = deadline - time.monotonic()
                if self._ended or left <= 0:
                    text = "\n".join(self.lines)
                    raise AssertionError(f"{self.args} did not print {pattern!r} but:\n{text}")
                self._grown.wait(left)

    def wait(self, timeout: float = START_TIMEOUT) -> int:
        """Return the exit code, when the process has ended and its output is read."""
        code = self._process.wait(timeout)
        self._reader.join(timeout)
        return code

    def kill(self) -> None:
        """Kill the process, which cannot tell anybody."""
        self._process.kill()
        self.wait()

    def send_signal(self, number: int) -> int:
        """Send a signal and return the exit code."""
        self._process.send_signal(number)
        return self.wait()

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(10)
        self._reader.join(10)
        self._process.stdout.close()


@contextlib.contextmanager
def running() -> Iterator[Callable[..., Process]]:
    """Start processes; all are stopped at the end, the last one first."""
    with contextlib.ExitStack() as stack:

        def start(*args: str, env: Mapping[str, str] | None = None) -> Process:
            process = Process(args, env or {})
            stack.callback(process.stop)
            return process

        yield start


# On one machine, without a dashboard, on whatever port is free.
SCHEDULER_OPTIONS = ("--host", "127.0.0.1", "--port", "0", "--no-dashboard")


def dask_command(*args: str) -> list[str]:
    """Return the command ``dask ...`` of the environment that runs the tests."""
    return [sys.executable, "-m", "dask", *args]


def scheduler_command(*args: str) -> list[str]:
    return dask_command("scheduler", *SCHEDULER_OPTIONS, *args)


def scheduler_address(process: Process) -> str:
    return process.wait_for(r"Scheduler at:\s+(\S+)")[1]


@contextlib.contextmanager
def local_cluster(**options: object) -> Iterator[LocalCluster]:
    """Make a small cluster that does not care which ports are taken."""
    defaults = {
        "threads_per_worker": 1,
        "dashboard_address": ":0",
        "worker_dashboard_address": None,
    }
    with LocalCluster(**{**defaults, **options}) as made:
        yield made
