"""Runs the queries of TPC-H under each policy, and compares their results."""

from __future__ import annotations

import contextlib
import importlib.util
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from distributed import wait

from benchmarks import suite_tables
from benchmarks.tpch.data import QUERIES
from benchmarks.verdicts import Bar
from dask_marsched.bench.cluster import BenchCluster, Setting
from dask_marsched.bench.metrics import Measurement
from dask_marsched.bench.workloads import Parameters, Workload
from dask_marsched.status import Status, status

MEMORY_LIMIT = "2 GiB"  # of each worker
BARS = {"managed": Bar(0.85, 1.05), "seconds": Bar(0.85, 1.05), "moved": Bar(1.0, 1.0)}
#: Relative differences up to here are rounding: sums of floats depend on the order of arrival.
ROUNDING = 1e-9
COUNT = 22
NOTE = f"{suite_tables.NOTE} same: up to rounding, in any order of rows."


def select(folder: Path, names: Sequence[str] = ()) -> tuple[Workload, ...]:
    """Return the named queries (``q01`` to ``q22``) on the data in a folder, or all.

    Raises
    ------
    ValueError
        If there is no such query, or the folder has none.
    """
    if not (folder / QUERIES).exists():
        raise ValueError(f"{folder} has no {QUERIES}: make it with `benchmarks.tpch.data`")
    spec = importlib.util.spec_from_file_location("dask_queries", folder / QUERIES)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    known = {f"q{i:02}": getattr(module, f"query_{i:02}") for i in range(1, COUNT + 1)}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"no queries named {', '.join(unknown)}; accepted: {', '.join(known)}")
    return tuple(_workload(name, known[name], folder) for name in names or known)


def _workload(name: str, query: Callable[..., Any], folder: Path) -> Workload:
    def build(_: Parameters) -> tuple[Any]:
        return (query(f"file://{folder.resolve()}/", None, scale(folder)),)

    modules = ("dask.dataframe", "pyarrow.parquet")
    return Workload(
        name, f"TPC-H {name}", lambda _: (), build, requires=modules, needs_cluster=True
    )


def scale(folder: Path) -> float:
    """Return the scale of the data in a folder: 10,000 suppliers are 1."""
    import pyarrow.parquet as pq

    files = (folder / "supplier").glob("*.parquet")
    suppliers: int = sum(pq.ParquetFile(file).metadata.num_rows for file in files)
    return suppliers / 10_000


def setting(workers: int, threads: int, timeout: float) -> Setting:
    """Return the size of the clusters."""
    return Setting(workers, threads, Parameters(), timeout, MEMORY_LIMIT)


class Findings:
    """What the clusters find besides their measurements.

    Attributes
    ----------
    first : dict
        By query, the result to which the others are compared.
    differences : dict
        By query, the largest relative difference found.
    exceptions : Counter
        Those caught by the plugin, by query and hook.
    """

    def __init__(self) -> None:
        self.first: dict[str, Any] = {}
        self.differences: dict[str, float] = {}
        self.exceptions: Counter[str] = Counter()

    @property
    def faulty(self) -> bool:
        """Whether the plugin caught an exception."""
        return bool(self.exceptions)

    def open(self, policy: str, setting: Setting, chosen: tuple[Workload, ...]) -> BenchCluster:
        """Return a cluster that runs a query before the others, and reports here."""
        return _QueryCluster(self, policy, setting, chosen)

    def compare(self, query: str, result: Any) -> bool:
        """Return whether a result equals the first one of the query, up to rounding."""
        found = difference(self.first.setdefault(query, result), result)
        self.differences[query] = max(found, self.differences.get(query, 0.0))
        return found <= ROUNDING

    def notes(self) -> Iterator[str]:
        """Return a line on each finding."""
        if self.differences:
            worst = max(self.differences, key=self.differences.__getitem__)
            yield f"Largest relative difference: {self.differences[worst]:.1e} in {worst}."
        for where, count in self.exceptions.items():
            yield f"{count} exceptions in {where}"


class _QueryCluster(BenchCluster):
    def __init__(self, findings: Findings, *args: Any) -> None:
        super().__init__(*args)
        self.findings = findings
        self.result: Any = None
        self.caught: Counter[str] = Counter()

    def open(self) -> None:
        super().open()
        assert self.client is not None
        self.caught = Counter()
        with contextlib.suppress(Exception):  # what fails here fails again in the run
            warm = self.chosen[0].build(self.setting.parameters)
            wait(self.client.compute(list(warm)), timeout=self.setting.timeout)
        self.settle(self.client)

    def _compute(self, client: Any, collections: tuple[Any, ...]) -> list[Any]:
        self.result = None
        # As `compute` of a data frame does; `Client.compute` does not fuse its tasks.
        fused = tuple(frame.repartition(npartitions=1).optimize() for frame in collections)
        results = super()._compute(client, fused)
        self.result = results[0]
        return results

    def measure(self, workload: Workload, repetition: int) -> Measurement:
        measured = super().measure(workload, repetition)
        assert self.client is not None
        now = caught(status(self.client))
        for hook, count in (now - self.caught).items():
            self.findings.exceptions[f"{workload.name}: {hook}"] += count
        self.caught = now
        if measured.error:
            return measured
        same = self.findings.compare(workload.name, self.result)
        return replace(measured, digest="as the first" if same else measured.digest)


def caught(state: Status) -> Counter[str]:
    """Return the exceptions that the plugin caught on a cluster, by hook."""
    found = Counter(state.exceptions)
    for parts in state.workers.values():
        for part in parts.values():
            found.update((part or {}).get("exceptions", {}))
    return found


def difference(one: Any, other: Any) -> float:
    """Return the largest relative difference of two frames' numbers; infinite if others differ."""
    import numpy as np

    if list(one.columns) != list(other.columns) or len(one) != len(other):
        return float("inf")
    floats = [c for c in one.columns if one[c].dtype.kind == "f"]
    rest = [c for c in one.columns if c not in floats]
    one, other = (f.sort_values([*rest, *floats], ignore_index=True) for f in (one, other))
    if not one[rest].equals(other[rest]):
        return float("inf")
    a, b = (f[floats].to_numpy(float) for f in (one, other))
    if not np.array_equal(np.isnan(a), np.isnan(b)):
        return float("inf")
    apart = np.abs(a - b) / np.maximum(np.maximum(np.abs(a), np.abs(b)), 1e-300)
    return float(np.nanmax(apart, initial=0.0))
