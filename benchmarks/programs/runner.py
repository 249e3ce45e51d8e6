"""Selects programs, and runs them on clusters that compare the results."""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from distributed import Client

from benchmarks import suite_tables
from benchmarks.findings import ComparingCluster
from benchmarks.programs import arrays, frames, futures, labelled
from benchmarks.verdicts import Bar
from dask_marsched.bench.cluster import RunFailed, Setting
from dask_marsched.bench.metrics import Measurement
from dask_marsched.bench.workloads import Parameters, Workload

MEMORY_LIMIT = "3 GiB"  # of each worker
BARS = {"seconds": Bar(1.0, 1.05), "moved": Bar(1.0, 1.05), "managed": Bar(1.0, 1.05)}


@dataclass(frozen=True)
class Program:
    """A function that uses a cluster as a user's program does."""

    run: Callable[..., Any]  #: gets a client and returns a value
    requires: tuple[str, ...] = ()  #: modules that it needs besides Dask and NumPy
    files: bool = False  #: it gets a directory too, as ``scratch``, and leaves nothing there


FRAMES = ("pandas", "pyarrow")
PROGRAMS: Mapping[str, Program] = {
    "frame-groupby": Program(frames.groupby, FRAMES),
    "frame-groupby-many": Program(frames.groupby_many, FRAMES),
    "frame-merge-index": Program(frames.merge_on_index, FRAMES),
    "frame-merge-column": Program(frames.merge_on_column, FRAMES),
    "frame-set-index": Program(frames.set_index, FRAMES),
    "frame-rolling": Program(frames.rolling, FRAMES),
    "frame-describe": Program(frames.describe, FRAMES),
    "frame-counts": Program(frames.counts_and_quantiles, FRAMES),
    "frame-parquet": Program(frames.parquet, FRAMES, files=True),
    "frame-difference": Program(frames.difference, FRAMES),
    "frame-distinct": Program(frames.distinct, FRAMES),
    "bag-words": Program(futures.bag_words),
    "bag-foldby": Program(futures.bag_foldby),
    "delayed-tree": Program(futures.delayed_tree),
    "sweep-scattered": Program(futures.sweep_scattered),
    "sweep-delayed": Program(futures.sweep_delayed),
    "submit-as-completed": Program(futures.submit_as_completed),
    "pipeline": Program(futures.pipeline),
    "long-and-short": Program(futures.long_and_short),
    "nested": Program(futures.nested),
    "chain": Program(futures.chain),
    "svd": Program(arrays.svd),
    "fft": Program(arrays.fft),
    "order-statistics": Program(arrays.order_statistics),
    "least-squares": Program(arrays.least_squares),
    "logistic": Program(arrays.logistic),
    "kmeans": Program(arrays.kmeans),
    "smooth-image": Program(arrays.smooth_image, ("scipy",)),
    "zarr": Program(arrays.zarr, ("zarr",), files=True),
    "sliding-window": Program(arrays.sliding_window),
    "persisted": Program(arrays.persisted),
    "histograms": Program(arrays.histograms),
    "matrix-power": Program(arrays.matrix_power),
    "correlation": Program(arrays.correlation),
    "reshape": Program(arrays.reshape),
    "mask": Program(arrays.mask),
    "cholesky": Program(arrays.cholesky, ("scipy",)),
    "components": Program(arrays.components),
    "permuted": Program(arrays.permuted),
    "blocks": Program(arrays.blocks),
    "labelled-anomaly": Program(labelled.anomaly, ("xarray",)),
    "labelled-resample": Program(labelled.resample, ("xarray",)),
    "labelled-quantile": Program(labelled.quantile, ("xarray",)),
    "labelled-trend": Program(labelled.trend, ("xarray",)),
    "labelled-correlation": Program(labelled.correlation, ("xarray",)),
    "labelled-spread": Program(labelled.spread, ("xarray",)),
    "labelled-weighted": Program(labelled.weighted, ("xarray",)),
    "labelled-rolling": Program(labelled.rolling, ("xarray",)),
    "labelled-coarsen": Program(labelled.coarsen, ("xarray",)),
    "labelled-composite": Program(labelled.composite, ("xarray",)),
}
NOTE = f"{suite_tables.NOTE} same: bit for bit."


def select(names: Sequence[str] = ()) -> tuple[Workload, ...]:
    """Return the named programs, or all; ValueError if there is no such program."""
    unknown = [name for name in names if name not in PROGRAMS]
    if unknown:
        raise ValueError(f"no programs named {', '.join(unknown)}; accepted: {', '.join(PROGRAMS)}")
    return tuple(_workload(name, PROGRAMS[name]) for name in names or PROGRAMS)


def setting(workers: int, threads: int, timeout: float, scratch: Path) -> Setting:
    """Return the size of the clusters, whose programs may write into a directory."""
    return Setting(workers, threads, Parameters(scratch=scratch), timeout, MEMORY_LIMIT)


def _workload(name: str, program: Program) -> Workload:
    """Return a workload whose only collection is a function of the client."""

    def build(parameters: Parameters) -> tuple[Callable[[Client], Any]]:
        if program.files:
            return (functools.partial(program.run, scratch=parameters.scratch),)
        return (program.run,)

    summary = (program.run.__doc__ or name).rstrip(".")
    return Workload(
        name, summary, lambda _: (), build, requires=program.requires, needs_cluster=True
    )


class ProgramCluster(ComparingCluster):
    """A cluster that runs each program once before it is measured.

    So workers have imported and compiled what a program needs. Memory of the processes is not
    measured: it would be that of all the programs before.
    """

    measures_pss = False

    def open(self) -> None:
        """Start the cluster, on which no program has run."""
        super().open()
        self.rehearsed: set[str] = set()

    def measure(self, workload: Workload, repetition: int) -> Measurement:
        """Run a program once and measure it."""
        return replace(super().measure(workload, repetition), pss=None)

    def attempt(self, client: Client, workload: Workload, repetition: int) -> Measurement:
        """Run a program once and measure it; failures are raised."""
        if workload.name not in self.rehearsed:
            self._compute(client, workload.build(self.setting.parameters))
            self.settle(client)
            self.rehearsed.add(workload.name)
        return super().attempt(client, workload, repetition)

    def _results(self, client: Client, programs: tuple[Any, ...]) -> list[Any]:
        (program,) = programs
        return [call_within(self.setting.timeout, program, client)]


def call_within(seconds: float, function: Callable[..., Any], *args: Any) -> Any:
    """Return what a function returns, called in a thread; RunFailed if that takes too long.

    The thread ends when the function does, which fails as soon as its cluster is closed.
    """
    executor = ThreadPoolExecutor(1)
    call = executor.submit(contextvars.copy_context().run, function, *args)
    executor.shutdown(wait=False)
    try:
        return call.result(seconds)
    except TimeoutError:
        if call.done():  # the function's own
            raise
        raise RunFailed(f"not done in {seconds:g} s") from None
