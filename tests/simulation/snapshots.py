"""What the plugin moves and holds on small versions of the benchmark's workloads, in the twin.

``python -m tests.simulation.snapshots`` says what changed, with ``--update`` it writes the new
numbers. A change of them belongs in the commit that makes it.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import distributed

from benchmarks import workloads
from dask_marsched.simulation import isolation, simulate

FILE = Path(__file__).with_name("snapshots.json")
PARAMETERS = workloads.Parameters(size=0.2)
WORKERS = (4, 16)
#: What stands behind a workload's name on record, and the policy that is meant.
POLICIES = {"": "default", " apart": "default+off"}

#: By workload and number of workers: bytes moved between workers, and the peak of those held.
Snapshots = dict[str, dict[str, dict[str, int]]]


def names() -> list[str]:
    """The workloads: those in general use whose chunks have a size worth the name."""
    return [
        workload.name for workload in workloads.select() if workload.kind is workloads.Kind.DATA
    ]


def rows() -> list[str]:
    """What is on record: each workload with tasks joined, and with tasks apart."""
    return [name + suffix for name in names() for suffix in POLICIES]


def take(chosen: Sequence[str] | None = None) -> Snapshots:
    """Simulate all workloads, or those chosen, in a process with a fixed hash seed."""
    some = names() if chosen is None else list(chosen)
    return isolation.call(functools.partial(_take, some), isolated=True)


def _take(chosen: list[str]) -> Snapshots:
    taken: Snapshots = {}
    for name in chosen:
        collections = list(workloads.get(name).build(PARAMETERS))
        for suffix, policy in POLICIES.items():
            row = taken[name + suffix] = {}
            for workers in WORKERS:
                report = simulate(collections, workers=workers, policy=policy, timeline=False)
                row[str(workers)] = {"moved": report.bytes_moved, "peak": report.peak_memory}
    return taken


def version() -> str:
    """The version of distributed that the snapshots are good for."""
    return str(distributed.__version__)


def read() -> tuple[str, Snapshots]:
    """Return the version of distributed, and the numbers on record."""
    content = json.loads(FILE.read_text())
    return content["distributed"], content["workloads"]


def differences(old: Snapshots, new: Snapshots) -> list[str]:
    """Return a line for each number that is not as it was, none if all are."""
    found = []
    for name in sorted({*old, *new}):
        for workers in sorted({*old.get(name, {}), *new.get(name, {})}, key=int):
            for what in ("moved", "peak"):
                was = old.get(name, {}).get(workers, {}).get(what)
                now = new.get(name, {}).get(workers, {}).get(what)
                if was != now:
                    share = f" ({now / was:.2f})" if was and now is not None else ""
                    found.append(f"{name}, {workers} workers, {what}: {was} -> {now}{share}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.snapshots")
    parser.add_argument("--update", action="store_true", help=f"write {FILE.name}")
    update = parser.parse_args().update
    new = take()
    changed = differences(read()[1] if FILE.exists() else {}, new)
    print("\n".join(changed) or "nothing changed")
    if update:
        content = {"distributed": version(), "workloads": new}
        FILE.write_text(json.dumps(content, indent=1) + "\n")
    return int(bool(changed) and not update)


if __name__ == "__main__":
    sys.exit(main())
