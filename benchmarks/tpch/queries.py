"""Selects queries of TPC-H, and runs them on clusters that compare the results."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from distributed import wait

from benchmarks import suite_tables
from benchmarks.findings import ComparingCluster
from benchmarks.tpch.data import QUERIES
from benchmarks.verdicts import Bar
from dask_marsched.bench.cluster import Setting
from dask_marsched.bench.workloads import Parameters, Workload

MEMORY_LIMIT = "2 GiB"  # of each worker
BARS = {"managed": Bar(0.85, 1.05), "seconds": Bar(0.85, 1.05), "moved": Bar(1.0, 1.0)}
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


class QueryCluster(ComparingCluster):
    """A cluster that runs a query before the others."""

    def open(self) -> None:
        """Start the cluster, and run a query."""
        super().open()
        assert self.client is not None
        with contextlib.suppress(Exception):  # what fails here fails again in the run
            warm = self.chosen[0].build(self.setting.parameters)
            wait(self.client.compute(list(warm)), timeout=self.setting.timeout)
        self.settle(self.client)

    def _results(self, client: Any, collections: tuple[Any, ...]) -> list[Any]:
        # As `compute` of a data frame does; `Client.compute` does not fuse its tasks.
        fused = tuple(frame.repartition(npartitions=1).optimize() for frame in collections)
        return super()._results(client, fused)
