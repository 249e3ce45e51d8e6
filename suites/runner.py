"""Runs files of tests, each in a process of its own, with a limit."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from suites.table import Suite

ROOT = Path(__file__).parents[1]
#: Most that one test may take.
TEST_SECONDS = 120


@dataclass(frozen=True)
class Result:
    """How a test ended: passed, failed, skipped or xfailed; and why it failed."""

    outcome: str
    reason: str = ""


Results = dict[str, Result]

#: Processes under way, which `stop` kills.
_running: set[subprocess.Popen[bytes]] = set()


def stop() -> None:
    """Kill all processes under way with what they have started."""
    for process in list(_running):
        _kill(process)


@dataclass(frozen=True)
class Runner:
    """Runs tests of a suite laid out in a folder.

    Attributes
    ----------
    suite : Suite
        Which.
    place : Path
        Where it was laid out.
    logs : Path
        Folder for pytest's output.
    limit : float
        Seconds until a process is killed.
    jobs : int
        How many processes run at a time.
    """

    suite: Suite
    place: Path
    logs: Path
    limit: float
    jobs: int

    def run(self, targets: Sequence[str], plugin: bool) -> Results:
        """Run files, or single tests, each in a process of its own."""
        with ThreadPoolExecutor(self.jobs) as pool:
            parts = pool.map(lambda target: self._run_one(target, plugin), targets)
            return {test: result for part in parts for test, result in part.items()}

    def _run_one(self, target: str, plugin: bool) -> Results:
        results: Results = {}
        while True:
            code, more = self._process(target, plugin, results)
            results |= more
            if code in (0, 1, 5):  # 5: no test was collected
                return results
            if not more:
                return {**results, target: Result("failed", f"pytest ended with {code}")}
            # What comes after the test that was killed, or has killed the process, is still to run.

    def _process(self, target: str, plugin: bool, done: Results) -> tuple[int, Results]:
        kind = "plugin" if plugin else "stock"
        name = target.replace("/", ".").replace("::", "--")[:150]
        self.logs.mkdir(parents=True, exist_ok=True)
        log = self.logs / f"{name}.{kind}.log"
        with tempfile.TemporaryDirectory() as folder, log.open("a" if done else "w") as output:
            outcomes = Path(folder) / "outcomes"
            outcomes.touch()
            process = subprocess.Popen(
                [*self._command(target, plugin), *(f"--deselect={test}" for test in done)],
                cwd=self.place,
                env=self._environment(plugin, outcomes),
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            _running.add(process)
            try:
                code = process.wait(self.limit)
            except subprocess.TimeoutExpired:
                code = -signal.SIGKILL
            finally:
                _running.discard(process)
                _kill(process)
            return code, dict(_read(outcomes))

    def _command(self, target: str, plugin: bool) -> list[str]:
        suite = self.suite
        own_config = self.place / suite.config
        config = own_config if own_config.exists() else ROOT / suite.config
        pytest = [sys.executable, "-m", "pytest", "-c", str(config), "--rootdir", "."]
        quiet = ["-q", "--no-header", "--color=no", "--tb=short", "-p", "no:cacheprovider"]
        limit = ["--timeout", str(TEST_SECONDS), "-o", "timeout_method=signal"]
        own = suite.plugin_options if plugin else suite.stock_options
        return [*pytest, *suite.options, *own, *quiet, *limit, "-p", "suites.outcomes", target]

    def _environment(self, plugin: bool, outcomes: Path) -> dict[str, str]:
        paths = [str(self.place), str(ROOT), os.environ.get("PYTHONPATH", "")]
        return {
            **os.environ,
            **(self.suite.plugin_environment if plugin else {}),
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "SUITES_OUTCOMES": str(outcomes),
        }


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and what it has left behind."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _read(file: Path) -> Iterable[tuple[str, Result]]:
    for line in file.read_text().splitlines():
        record = json.loads(line)
        yield record["test"], Result(record["outcome"], record["reason"])
