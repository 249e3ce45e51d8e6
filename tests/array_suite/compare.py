"""Run dask.array's own tests on a stock cluster and on one with the plugin; compare.

``python -m tests.array_suite.compare`` runs all of them, ``... test_rechunk test_linalg`` those
files, ``--per-file 10`` a sample. Ends with 0 if each test ends the same way and no hook of ours
has raised. The workers are threads of this process, which tests that count calls or patch
functions need; with ``--workers processes`` results are pickled, shared and mapped.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dask.array

CONFIG = Path(__file__).parents[2] / "suites" / "dask.ini"
SUITE = Path(dask.array.__file__).parent / "tests"


@dataclass
class Run:
    """One run of the suite: each test's outcome and, if it failed, why; the plugin's reports."""

    outcomes: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    reports: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0

    def passed(self) -> set[str]:
        return {test for test, outcome in self.outcomes.items() if outcome == "passed"}

    def differing(self, other: Run) -> list[str]:
        """Return the tests that did not end the same way."""
        tests = self.outcomes.keys() | other.outcomes.keys()
        return sorted(t for t in tests if self.outcomes.get(t) != other.outcomes.get(t))


def run_suite(
    cluster: str,
    tests: list[str],
    processes: int = 1,
    per_file: int = 0,
    keep: Path | None = None,
    workers: str = "threads",
) -> Run:
    """Run tests on a cluster; raise RuntimeError if pytest did not come to its end.

    No tests are all tests. `keep` is a file that does not exist yet, for what each test did.
    """
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--no-header",
        "-p",
        "suites.client_cluster",
    ]
    command += ["-p", "no:cacheprovider", "-c", str(CONFIG), "--tb=native"]
    command += ["--rootdir", str(SUITE), "--cluster", cluster, "--per-file", str(per_file)]
    command += ["--workers", workers]
    if processes > 1:
        command += ["-n", str(processes)]
    with tempfile.TemporaryDirectory() as folder:
        file = keep or Path(folder) / "outcomes"
        began = time.monotonic()
        ended = subprocess.run(
            [*command, "--outcomes", str(file), *(tests or [str(SUITE)])],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if ended.returncode not in (0, 1):
            raise RuntimeError(f"pytest ended with {ended.returncode}:\n{ended.stdout[-4000:]}")
        return _read(file, time.monotonic() - began)


def _read(file: Path, seconds: float) -> Run:
    run = Run(seconds=seconds)
    for line in file.read_text().splitlines():
        record = json.loads(line)
        if record.get("report"):
            run.reports.append(record["report"])
        elif "test" in record:
            test, outcome = record["test"], record["outcome"]
            if run.outcomes.get(test) != "failed":  # it may pass and fail in its tear-down
                run.outcomes[test] = outcome
                run.reasons[test] = record["reason"]
    return run


def compare(options: argparse.Namespace) -> bool:
    """Run the suite both ways and print what differs; True if nothing does."""
    runs = {}
    files = [str(SUITE / f"{name.removesuffix('.py')}.py") for name in options.files]
    for cluster in ("stock", "marsched"):
        file = options.keep / f"{cluster}.jsonl" if options.keep else None
        runs[cluster] = run = run_suite(
            cluster, files, options.processes, options.per_file, file, options.workers
        )
        print(f"{cluster}: {dict(Counter(run.outcomes.values()))} in {run.seconds:.0f} s")
    stock, ours = runs["stock"], runs["marsched"]
    alone = stock.differing(ours)
    if alone:
        # Tests that measure time, or depend on those before them, differ from run to run.
        tests = [str(SUITE / t) for t in alone]
        again = {c: run_suite(c, tests, workers=options.workers) for c in runs}
        differ = again["stock"].differing(again["marsched"])
        for test in alone:
            lasting = "differs" if test in differ else "the same when run again, alone"
            print(f"{test}: stock {stock.outcomes.get(test)}, marsched {ours.outcomes.get(test)}")
            print(f"  {lasting}\n  {stock.reasons.get(test) or ours.reasons.get(test)}")
        ours.reports += again["marsched"].reports
        alone = differ
    planned = sum(report["graphs_planned"] for report in ours.reports)
    exceptions = Counter[str]()
    for report in ours.reports:
        exceptions.update(report["exceptions"])
        if report["exceptions"]:
            print(report["last_exception"])
    print(f"graphs planned {planned}; exceptions in our hooks {dict(exceptions)}")
    return not alone and not exceptions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", help="of dask/array/tests; default: all")
    parser.add_argument("-n", "--processes", type=int, default=2)
    parser.add_argument("--per-file", type=int, default=0, help="so many tests of each file only")
    parser.add_argument("--keep", type=Path, help="folder for what each test did, JSON lines")
    parser.add_argument("--workers", choices=("threads", "processes"), default="threads")
    sys.exit(not compare(parser.parse_args()))


if __name__ == "__main__":
    main()
