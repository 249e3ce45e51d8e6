"""Runs each analysis with stock Dask and with the plugin in turn, and kills a worker in one."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask
import numpy as np
import xarray as xr
from distributed import Client

from dask_marsched.bench import runner
from dask_marsched.bench.cluster import DEFAULT, BenchCluster, RunFailed, Setting
from dask_marsched.bench.killer import Killer
from dask_marsched.bench.metrics import STOCK, Measurement
from dask_marsched.bench.workloads import Parameters, Workload
from dask_marsched.demo.analyses import ANALYSES, KILLED, Analysis

OURS = DEFAULT
WORKERS = 4
TIMEOUT = 120.0
"""Seconds after which an analysis has failed."""
BUDGET = 45.0
"""Seconds after which no second round begins."""


class DemoCluster(BenchCluster):
    """A cluster whose workers have imported xarray, and one of which can be killed in a run."""

    killing = False  #: whether the present run kills a worker

    def open(self) -> None:
        """Start the cluster, then let each worker run the analyses on a few values."""
        self.chosen = ()  # no workloads to warm up: the analyses are
        super().open()
        assert self.client is not None
        cluster: Any = self.cluster
        self.killer = Killer({})
        cluster.loop.add_callback(cluster.scheduler.add_plugin, self.killer)
        self.client.run(warm_up)

    def healthy(self) -> bool:
        """Return whether no worker died but the one that was killed on purpose."""
        return self.killing or super().healthy()

    def attempt(self, client: Client, workload: Workload, repetition: int) -> Measurement:
        """Run an analysis once and measure it; failures are raised."""
        self.killing = workload.name == KILLED.title
        self.measures_pss = not self.killing
        self.killer.pids = dict(self.pids) if self.killing else {}
        found = replace(super().attempt(client, workload, repetition), again=self.killer.again)
        if not self.killing:
            return found
        if self.killer.pids:
            raise RunFailed("no worker was killed")
        # The counts of the worker that was killed are lost.
        return replace(found, moved=None, mapped=None, pss=None, cpu=None)


def warm_up() -> None:
    """Run the analyses on a few values, so that no import is measured. Runs on the workers."""
    import zarr  # noqa: F401  # opens the store later

    values = np.ones((48, 2, 2), np.float32)
    data = dict.fromkeys("tuv", (("time", "latitude", "longitude"), values))
    tiny = xr.Dataset(data).chunk(time=24)
    for analysis in ANALYSES:
        dask.compute(analysis.build(tiny), scheduler="synchronous")


def run_all(
    store: Path, progress: Callable[[Measurement], None], said: Callable[[str], None]
) -> runner.Outcome:
    """Run all analyses under both, in one round or two; see `runner.run` for their order.

    `progress` is called with each measurement, `said` with a sentence before each round.
    """
    chosen = tuple(_workload(analysis, store) for analysis in (*ANALYSES, KILLED))
    setting = Setting(WORKERS, 1, Parameters(), TIMEOUT)
    openers: dict[str, runner.Opener] = dict.fromkeys((STOCK, OURS), DemoCluster)
    outcome = runner.Outcome()
    began = time.monotonic()
    # A plugin that the user's configuration preloads would run on the stock side too.
    with dask.config.set({"distributed.scheduler.preload": []}):
        for order in ((STOCK, OURS), (OURS, STOCK)):
            if outcome.measurements and time.monotonic() - began > BUDGET:
                break
            said(f"Two clusters of {WORKERS} worker processes start: stock Dask and the plugin.")
            found = runner.run(chosen, order, 1, setting, progress, openers)
            outcome.measurements += found.measurements
            outcome.reports += found.reports
    return outcome


def _workload(analysis: Analysis, store: Path) -> Workload:
    def arrays(parameters: Parameters) -> tuple[Any, ...]:
        result = analysis.build(xr.open_zarr(store, consolidated=False))
        return tuple(variable.data for variable in result.data_vars.values())

    return Workload(analysis.title, analysis.title, lambda parameters: (), arrays)
