"""Runs the workloads on Frisky, another scheduler for Dask, through its command line.

Frisky has an environment of its own. This module runs its ``scheduler`` and ``worker`` commands,
its client in a process of its own, and ``observe workers`` for its figures.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import subprocess
import tempfile
import time
import venv
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

from benchmarks.verdicts import FRISKY
from dask_marsched.bench.cluster import RunFailed, Setting
from dask_marsched.bench.metrics import Measurement
from dask_marsched.bench.probes import PssSampler
from dask_marsched.bench.workloads import Parameters, Workload

STARTING = 60.0  # seconds in which its processes must be up
#: On the path of the session and the workers, which import the workloads from there.
ROOT = Path(__file__).parents[2]
# The packages that the workloads use, in the versions of this environment where it has them.
PACKAGES = ("dask", "distributed", "numpy", "pandas", "pyarrow", "xarray", "flox", "zarr", "scipy")
# As Dask's nannies set for their workers.
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


def environment(python: Path | None) -> Path:
    """Return the interpreter of an environment that holds Frisky; make one if none is given.

    Parameters
    ----------
    python : Path or None
        Interpreter of an environment made beforehand. If None, one is made once in the user's
        cache directory, which downloads Frisky and the packages the workloads use.

    Raises
    ------
    ValueError
        If there is no ``frisky`` command beside the interpreter.
    """
    if python is None:
        cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
        home = cache / "dask-marsched" / FRISKY
        python = home / "bin" / "python"
        if not python.with_name(FRISKY).exists():
            venv.create(home, with_pip=True)
            wanted = [f"{name}=={version(name)}" for name in PACKAGES if _installed(name)]
            subprocess.run([python, "-m", "pip", "install", "-q", FRISKY, *wanted], check=True)
    if not python.with_name(FRISKY).exists():
        raise ValueError(f"no frisky command beside {python}; give an interpreter that has one")
    return python


def _installed(name: str) -> bool:
    with contextlib.suppress(ModuleNotFoundError):
        version(name)
        return True
    return False


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


class FriskyCluster:
    """Frisky's scheduler, its worker processes and a client, measured like Dask's clusters.

    Wall time and PSS of the worker processes mean the same as for Dask. Bytes moved are the sum
    of the bytes that its workers report as received: results before compression, which Frisky
    applies on the wire and Dask does not. Managed memory and tasks sent are not available.

    Parameters
    ----------
    python : Path
        Interpreter of Frisky's environment.
    policy : str
        The column's name.
    setting : Setting
        What all clusters of the benchmark have in common.
    chosen : tuple of Workload
        The workloads to come, for which the workers are warmed up.
    """

    def __init__(
        self, python: Path, policy: str, setting: Setting, chosen: tuple[Workload, ...]
    ) -> None:
        self.python = python
        self.chosen = chosen
        self.policy = policy
        self.setting = setting
        self._stack = contextlib.ExitStack()
        self._workers: list[subprocess.Popen[str]] = []
        self._session: subprocess.Popen[str] | None = None
        self._dashboard = ""

    def __enter__(self) -> FriskyCluster:
        try:
            self._open()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def report(self) -> None:
        """Return nothing: it has no plugin of ours."""

    def measure(self, workload: Workload, repetition: int) -> Measurement:
        """Run a workload once and measure it. A run that fails is a measurement too."""
        request = _request(workload, self.setting.parameters)
        try:
            before = self._received()
            with PssSampler(worker.pid for worker in self._workers) as pss:
                reply = self._ask(request, self.setting.timeout)
            if "error" in reply:
                raise RunFailed(reply["error"])
            if any(worker.poll() is not None for worker in self._workers):
                raise RunFailed("a worker died")
            return Measurement(
                workload=workload.name,
                policy=self.policy,
                repetition=repetition,
                seconds=reply["seconds"],
                moved=self._received() - before,
                pss=pss.peak,
                digest=reply["digest"],
            )
        except (RunFailed, OSError, subprocess.SubprocessError) as error:
            self._stack.close()
            self._open()
            return Measurement(workload.name, self.policy, repetition, error=str(error))

    def _open(self) -> None:
        address = f"127.0.0.1:{_free_port()}"
        dashboard = f"127.0.0.1:{_free_port()}"
        self._dashboard = f"http://{dashboard}"
        command = str(self.python.with_name(FRISKY))
        self._start([command, "scheduler", "-a", address, "--dashboard-address", dashboard])
        self._wait_for(lambda: _reachable(address) and _reachable(dashboard))
        threads = str(self.setting.threads)
        self._workers = [
            self._start([command, "worker", address, "--nthreads", threads])
            for _ in range(self.setting.workers)
        ]
        self._wait_for(lambda: len(self._observed()["workers"]) == self.setting.workers)
        session = [str(self.python), str(Path(__file__).with_name("session.py")), address]
        self._session = self._start(session, talk=True)
        self._reply(STARTING)
        # Tiny runs import what the workers need. Unlike Dask, it sees them and may learn.
        tiny = Parameters(0.1, 64 * 1024, Path(self._stack.enter_context(_scratch())))
        for workload in self.chosen:
            if not workload.needs_cluster:
                self._ask(_request(workload, tiny), self.setting.timeout)

    def _start(self, command: list[str], talk: bool = False) -> subprocess.Popen[str]:
        env = {**os.environ, **ONE_THREAD, "PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE if talk else subprocess.DEVNULL,
            stdout=subprocess.PIPE if talk else subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=env,
            text=True,
        )
        self._stack.callback(_end, process)
        return process

    def _wait_for(self, reached: Any) -> None:
        deadline = time.monotonic() + STARTING
        while not reached():
            if time.monotonic() > deadline:
                raise RunFailed("Frisky's processes did not come up")
            time.sleep(0.1)

    def _observed(self) -> dict[str, Any]:
        command = [str(self.python.with_name(FRISKY)), "observe", "workers", "--json", "--url"]
        done = subprocess.run(
            [*command, self._dashboard], capture_output=True, text=True, timeout=STARTING
        )
        if done.returncode:
            return {"workers": []}
        observed: dict[str, Any] = json.loads(done.stdout)
        return observed

    def _received(self) -> int:
        """Return the bytes received by all workers so far, once the count stands still."""
        last = -1
        for _ in range(20):  # workers report from time to time
            workers = self._observed()["workers"]
            count = sum(int(worker["bytes_received"]) for worker in workers)
            if count == last:
                return count
            last = count
            time.sleep(0.5)
        raise RunFailed("the count of bytes received does not come to rest")

    def _ask(self, request: dict[str, Any], timeout: float) -> dict[str, Any]:
        assert self._session is not None
        assert self._session.stdin is not None
        self._session.stdin.write(json.dumps(request) + "\n")
        self._session.stdin.flush()
        return self._reply(timeout)

    def _reply(self, timeout: float) -> dict[str, Any]:
        assert self._session is not None
        pipe: IO[str] | None = self._session.stdout
        assert pipe is not None
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            if not selector.select(timeout):
                raise RunFailed(f"no result within {timeout:g} seconds")
        line = pipe.readline()
        if not line:
            raise RunFailed("Frisky's client ended")
        reply: dict[str, Any] = json.loads(line)
        return reply


def _scratch() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="bench-")


def _request(workload: Workload, parameters: Parameters) -> dict[str, Any]:
    return {
        "workload": workload.name,
        "size": parameters.size,
        "chunk_bytes": parameters.chunk_bytes,
        "scratch": str(parameters.scratch),
    }


def _reachable(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1):
        return True
    return False


def _end(process: subprocess.Popen[str]) -> None:
    """End a process of ours: ask first, then kill."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    process.terminate()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(timeout=10)
