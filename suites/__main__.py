"""Runs suites with stock Dask and with the plugin, and compares them test by test.

``python -m suites`` runs all whose package is installed, ``python -m suites distributed
test_steal`` the files of one whose name contains a word. Ends with 0 if the
outcomes differ in the listed tests only.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from suites import source
from suites.compare import Comparison, compare
from suites.runner import ROOT, Results, Runner, stop
from suites.table import Suite, expected, missing, suites

FOLDER = ROOT / "build" / "suites"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m suites", description=__doc__)
    parser.add_argument("suite", nargs="?", choices=list(suites()), help="default: all")
    parser.add_argument("words", nargs="*", help="only files whose path contains one of these")
    parser.add_argument("--repository", help="a clone on this machine (default: from GitHub)")
    parser.add_argument("--ref", help="version of the tests (default: the installed package's)")
    parser.add_argument("--limit", type=float, default=900, help="seconds for a process")
    parser.add_argument("--jobs", type=int, default=2, help="files at a time")
    parser.add_argument("--again", type=int, default=3, help="repeats of tests that differ")
    return parser.parse_intermixed_args()


def _files(suite: Suite, place: Path, words: Sequence[str]) -> list[str]:
    found = [
        str(file.relative_to(place)) for tests in suite.tests for file in _test_files(place / tests)
    ]
    return [file for file in found if not words or any(word in file for word in words)]


def _test_files(path: Path) -> list[Path]:
    return sorted(path.rglob("test_*.py")) if path.is_dir() else [path]


def _settle(runner: Runner, comparison: Comparison, repeats: int) -> list[str]:
    """Run tests that differ again, alone; return those that fail with the plugin only."""
    lasting = []
    for test in comparison.unexpected:
        failures = {
            plugin: sum(
                any(result.outcome != "passed" for result in runner.run([test], plugin).values())
                for _ in range(repeats)
            )
            for plugin in (False, True)
        }
        print(f"  {test}: alone, stock failed {failures[False]} of {repeats}, ", end="")
        print(f"the plugin {failures[True]}", flush=True)
        if failures[True] and not failures[False]:
            lasting.append(test)
    return lasting


def _tell(name: str, results: Results, comparison: Comparison) -> None:
    print(f"{name}: passed with stock {comparison.passed['stock']}, ", end="")
    print(f"with the plugin {comparison.passed['plugin']}; ", end="")
    print(f"listed failures {len(comparison.listed)}")
    for test in comparison.unexpected:
        result = results.get(test)
        print(f"  differs: {test}: {result.outcome if result else 'not run'}; ", end="")
        print(result.reason if result else "")
    for test in comparison.stale:
        print(f"  listed, but passes: {test}", flush=True)


def _run(name: str, options: argparse.Namespace) -> bool:
    suite = suites()[name]
    place = source.lay_out(suite, options.repository, options.ref, FOLDER)
    runner = Runner(suite, place, FOLDER / "logs" / name, options.limit, options.jobs)
    stock: Results = {}
    plugin: Results = {}
    for file in _files(suite, place, options.words):
        stock |= (before := runner.run([file], plugin=False))
        plugin |= (after := runner.run([file], plugin=True))
        passed = compare(before, after, ()).passed
        print(
            f"  {file}: {passed['stock']}, {passed['plugin']} passed", file=sys.stderr, flush=True
        )
    comparison = compare(stock, plugin, expected())
    _tell(name, plugin, comparison)
    lasting = _settle(runner, comparison, options.again)
    return not lasting and not comparison.stale


def _all() -> list[str]:
    left_out = missing()
    for name, package in left_out.items():
        print(f"{name}: left out, {package} is not installed", file=sys.stderr)
    return [name for name in suites() if name not in left_out]


def _terminated(*_: object) -> None:
    stop()
    os._exit(128 + signal.SIGTERM)


def main() -> None:
    """Run what the command line names."""
    signal.signal(signal.SIGTERM, _terminated)
    options = _arguments()
    names = [options.suite] if options.suite else _all()
    agree = [_run(name, options) for name in names]
    sys.exit(not all(agree))


if __name__ == "__main__":
    main()
