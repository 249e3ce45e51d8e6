"""The runs: all analyses on one fresh cluster of worker processes, measured one by one."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import dask
import xarray as xr
from distributed import Client, LocalCluster, progress

import dask_marsched
from dask_marsched.bench import probes
from dask_marsched.bench.cluster import trim_memory
from dask_marsched.bench.metrics import Measurement
from dask_marsched.demo.analyses import ANALYSES, Analysis
from dask_marsched.status import Status, status

START_TIMEOUT = 60
"""Seconds that the workers may take to start."""

SAMPLE_INTERVAL = 0.2
"""Seconds between two samples of the memory: one of four processes costs about 10 ms of CPU."""

Announce = Callable[[str], None]


@dataclass(frozen=True)
class Machine:
    """The cluster to start: worker processes, threads in each, bytes that each may use."""

    workers: int
    threads: int
    memory_limit: int

    def __str__(self) -> str:
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        return f"{self.workers} worker processes x {threads}"


@dataclass
class Run:
    """All analyses on one cluster: results and measurements by analysis, the plugin's status."""

    results: dict[str, xr.Dataset] = field(default_factory=dict)
    measurements: dict[str, Measurement] = field(default_factory=dict)
    status: Status | None = None


def run_all(store: Path, machine: Machine, *, plugin: bool, announce: Announce, bars: bool) -> Run:
    """Run the analyses on a cluster of their own.

    Parameters
    ----------
    store : pathlib.Path
        The Zarr store.
    machine : Machine
        The cluster to start.
    plugin : bool
        Whether the scheduler gets the plugin; else it is stock Dask.
    announce : callable
        Called with the analysis' title before it is run.
    bars : bool
        Whether to draw Dask's progress bar on the terminal.

    Returns
    -------
    Run
        With the `status` of the plugin after the last analysis.

    Raises
    ------
    distributed.scheduler.KilledWorker
        If workers died of an analysis, most often because their memory did not suffice.
    RuntimeError
        If the plugin cannot be registered.
    TimeoutError
        If the workers do not start.
    """
    run = Run()
    policy = "marsched" if plugin else "stock"
    with _cluster(machine, plugin=plugin) as client:
        for analysis in ANALYSES:
            announce(analysis.title)
            with _measured(client, analysis.name, policy) as measured:
                result = _compute(client, analysis, store, bars=bars)
            run.results[analysis.name] = result
            run.measurements[analysis.name] = measured[0]
        if plugin:
            run.status = status(client)
    return run


def _compute(client: Client, analysis: Analysis, store: Path, *, bars: bool) -> xr.Dataset:
    with xr.open_zarr(store, consolidated=False) as ds:
        future = client.compute(analysis.build(ds))
        if bars:
            progress(future, notebook=False)
            print()
        result: xr.Dataset = future.result()
    return result


@contextmanager
def _cluster(machine: Machine, *, plugin: bool) -> Iterator[Client]:
    """Start a cluster and make it ready: nothing but the analyses is to be measured later."""
    # Whoever preloads the plugin by configuration would get it on the stock side too.
    with (
        dask.config.set({"distributed.scheduler.preload": []}),
        LocalCluster(
            n_workers=machine.workers,
            threads_per_worker=machine.threads,
            memory_limit=machine.memory_limit,
            processes=True,
            dashboard_address=":0",  # whatever port is free; there is no dashboard behind it
            scheduler_kwargs={"dashboard": False},
            silence_logs=logging.ERROR,
        ) as cluster,
        dask_marsched.Client(cluster, scheduler_plugin=plugin) as client,
    ):
        client.wait_for_workers(machine.workers, timeout=START_TIMEOUT)
        client.register_plugin(probes.TrafficMeter(), name=probes.METER)
        client.register_plugin(probes.SchedulerProbe(), name=probes.PROBE)
        client.run(_import_all)
        yield client


def _import_all() -> None:
    """Import what the analyses need; runs on the workers."""
    for name in ("dask.array", "xarray", "zarr", "flox"):
        if importlib.util.find_spec(name.partition(".")[0]):
            importlib.import_module(name)


@contextmanager
def _measured(client: Client, workload: str, policy: str) -> Iterator[list[Measurement]]:
    """Measure what happens inside; the measurement is in the list afterwards."""
    measurements: list[Measurement] = []
    client.run(trim_memory)  # what the analysis before has freed
    client.run(probes.reset_traffic)
    client.run_on_scheduler(probes.reset_probe)
    pids = client.run(os.getpid).values()
    with probes.PssSampler(pids, SAMPLE_INTERVAL) as sampler:
        start = time.perf_counter()
        yield measurements
        seconds = time.perf_counter() - start
    managed, sent = client.run_on_scheduler(probes.read_probe)
    measurements.append(
        Measurement(
            workload=workload,
            policy=policy,
            repetition=0,
            seconds=seconds,
            moved=probes.bytes_between_workers(client.run(probes.read_traffic)),
            managed=managed,
            pss=sampler.peak or None,
            sent=sent,
        )
    )
