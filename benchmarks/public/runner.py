"""Runs tests of the public suite under each policy in alternation, each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks.public.local_coiled import POLICY, RESULTS
from benchmarks.verdicts import Bar
from dask_marsched.bench.metrics import Measurement

BARS: Mapping[str, Bar] = {
    "seconds": Bar(0.65, 1.05),
    "moved": Bar(0.15, 1.05),
    "managed": Bar(0.60, 1.05),
    "pss": Bar(0.92, 1.05),
}
#: Files of the suite with tests that need no cloud.
FILES = tuple(
    f"tests/{name}.py"
    for name in (
        "benchmarks/test_array",
        "benchmarks/test_custom",
        "benchmarks/test_dataframe",
        "benchmarks/test_futures",
        "benchmarks/test_join",
        "benchmarks/test_rechunk",
        "benchmarks/test_spill",
        "benchmarks/test_work_stealing",
        "benchmarks/test_xarray",
        "stability/test_array",
    )
)
_SMALL = {"n_workers": 4, "worker_vm_types": ["m5.large"]}
_CLUSTERS = "local.cluster.yaml"


def tests_of(suite: Path, chosen: Sequence[str]) -> list[str]:
    """Return the ids of the tests in `FILES`, only those that contain one of ``chosen`` if any.

    Raises
    ------
    ValueError
        If pytest finds no tests there.
    """
    listed = _pytest(suite, ["--collect-only", "-q", *FILES], "stock", Path(os.devnull))
    ids = [line for line in listed.stdout.splitlines() if "::" in line]
    if not ids:
        raise ValueError(f"no tests in {suite}: {listed.stdout[-2000:]}{listed.stderr[-2000:]}")
    return [i for i in ids if not chosen or any(word in i for word in chosen)]


def run(
    suite: Path,
    tests: Iterable[str],
    policies: Sequence[str],
    repeat: int,
    timeout: float,
    progress: Callable[[Measurement], None],
) -> None:
    """Measure tests under policies in alternation; each fails after so many seconds."""
    for test in tests:
        for repetition in range(repeat):
            for policy in policies if repetition % 2 == 0 else reversed(policies):
                measurement = _measure(suite, test, policy, repetition, timeout)
                if measurement is not None:
                    progress(measurement)


def _measure(
    suite: Path, test: str, policy: str, repetition: int, timeout: float
) -> Measurement | None:
    """Return what a test took; None if it was skipped."""
    name = test.removeprefix("tests/").removeprefix("benchmarks/")
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        try:
            ended = _pytest(suite, ["-q", test], policy, Path(file.name), timeout)
        except subprocess.TimeoutExpired:
            return Measurement(name, policy, repetition, error=f"not done in {timeout:g} s")
        lines = Path(file.name).read_text().splitlines()
    if not lines:
        if ended.returncode == 0:
            return None
        return Measurement(name, policy, repetition, error=ended.stdout[-300:])
    found: dict[str, Any] = json.loads(lines[-1])
    error = found["error"]
    if error == "skipped":
        return None
    if error is None and ended.returncode:
        error = f"after the test: {ended.stdout[-300:]}"
    if error is None and found["restarted"]:
        error = "a worker was restarted"
    if error is None and found["exceptions"]:
        error = f"exceptions of the plugin: {found['exceptions']}"
    axes = ("seconds", "moved", "managed", "pss", "sent", "cpu", "mapped")
    values = {axis: found.get(axis) for axis in axes}
    return Measurement(name, policy, repetition, error=error, **values)


def _pytest(
    suite: Path, arguments: Sequence[str], policy: str, results: Path, timeout: float | None = None
) -> subprocess.CompletedProcess[str]:
    (suite / _CLUSTERS).write_text(json.dumps({"default": _SMALL} | _sections(suite)))
    own = str(Path(__file__).parents[2])
    environment = dict(
        os.environ,
        CLUSTER_KWARGS=_CLUSTERS,
        PYTHONPATH=os.pathsep.join(filter(None, [own, os.environ.get("PYTHONPATH")])),
        **{POLICY: policy, RESULTS: str(results)},
    )
    command = [sys.executable, "-m", "pytest", "-p", "benchmarks.public.measuring", *arguments]
    return subprocess.run(
        [*command, "-o", "addopts=", "-p", "no:cacheprovider"],
        cwd=suite,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def _sections(suite: Path) -> dict[str, Any]:
    clusters: dict[str, Any] = yaml.safe_load((suite / "cluster_kwargs.yaml").read_text())
    return dict.fromkeys(clusters, _SMALL)
