"""Measures workloads one after another on a real cluster under one policy."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import logging
import os
import signal
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
from distributed import Client, LocalCluster, Scheduler, wait

from dask_marsched.bench import probes
from dask_marsched.bench.metrics import STOCK, Measurement, digest
from dask_marsched.bench.workloads import Kind, Parameters, Workload

DEFAULT = "default"
#: Suffixes of a policy's name, and the options that they set.
PARTS: dict[str, dict[str, Any]] = {
    "nokernels": {"marsched.fusion.kernels": False},
    "noquota": {"marsched.quota.enabled": False},
    "unshared": {"marsched.store.shared": False},
    "uninterrupted": {"marsched.cancelling.interrupt": False},
}
CLOSING = 30.0  # seconds that a cluster may take to close before its processes are killed


class RunFailed(Exception):
    """A workload did not finish; the message says why."""


@dataclass(frozen=True)
class Setting:
    """Size of a benchmark's clusters and workloads."""

    workers: int
    threads: int  #: per worker
    parameters: Parameters
    timeout: float  #: seconds until a run fails
    memory_limit: str = "auto"  #: of each worker


def policy_plugin(policy: str) -> Any:
    """Return the scheduler plugin of a policy, None for stock; ValueError if the name is unknown.

    A policy is ``stock``, ``default`` for the plugin as it comes, or the name of an assignment. The
    suffixes ``+off``, ``+chains`` and ``+subgraphs`` select how tasks are joined, and those in
    `PARTS` switch a part off. Whatever follows a ``#`` only tells columns apart.
    """
    name, *more = policy.partition("#")[0].split("+")
    if name == STOCK:
        return None
    from dask_marsched import MarsSchedulerPlugin

    assignment = None if name == DEFAULT else name
    options = {k: v for word in more for k, v in PARTS.get(word, {}).items()}
    fusion = "+".join(word for word in more if word not in PARTS)  # two at once: an unknown name
    with dask.config.set(options):
        return MarsSchedulerPlugin(assignment=assignment, fusion=fusion or None)


def trim_memory() -> None:
    """Collect garbage and give freed memory back to the system. Runs on the workers."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def warm_up(chosen: tuple[Workload, ...]) -> None:
    """Run tiny versions of workloads, which import and compile what they need. Runs on the workers.

    The scheduler does not see it, so it learns neither durations nor sizes. What fails here fails
    again in the run, which reports it.
    """
    for workload in chosen:
        with contextlib.suppress(Exception), tempfile.TemporaryDirectory() as scratch:
            for module in workload.requires:
                importlib.import_module(module)
            if not workload.needs_cluster:
                parameters = Parameters(size=0.01, chunk_bytes=8192, scratch=Path(scratch))
                dask.compute(*workload.build(parameters), scheduler="synchronous")


def tasks_known(dask_scheduler: Scheduler) -> int:
    """Return the number of tasks that the scheduler knows. Runs on the scheduler."""
    return len(dask_scheduler.tasks)


def plugin_report(dask_scheduler: Scheduler) -> dict[str, Any] | None:
    """Return the report of this package's plugin, if it is there. Runs there."""
    plugin: Any = dask_scheduler.plugins.get("marsched")
    report: dict[str, Any] | None = plugin.report() if plugin is not None else None
    return report


class BenchCluster:
    """A `LocalCluster` with the probes in place; its workers are warmed up for some workloads."""

    #: Whether to measure PSS, which takes a fifth of a core on the workers' host.
    measures_pss = True

    def __init__(self, policy: str, setting: Setting, chosen: tuple[Workload, ...]) -> None:
        self.policy = policy
        self.setting = setting
        self.chosen = chosen
        self.cluster: Any = None  #: What has the processes, and ends them with ``close(timeout)``.
        self.client: Client | None = None
        self.pids: dict[str, int] = {}

    def __enter__(self) -> BenchCluster:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> None:
        """Start the cluster, the policy and the probes, and warm the workers up."""
        plugin = policy_plugin(self.policy)
        self.client = client = self._start()
        client.wait_for_workers(self.setting.workers, timeout=60)
        if plugin is not None:
            client.register_plugin(plugin)
        client.register_plugin(probes.SchedulerProbe(), name=probes.PROBE)
        client.register_plugin(probes.TrafficMeter(), name=probes.METER)
        self.pids = client.run(os.getpid)
        client.run(warm_up, tuple(w for w in self.chosen if not w.missing()))

    def _start(self) -> Client:
        """Start the processes."""
        self.cluster = LocalCluster(
            n_workers=self.setting.workers,
            threads_per_worker=self.setting.threads,
            processes=True,
            memory_limit=self.setting.memory_limit,
            dashboard_address=":0",
            silence_logs=logging.CRITICAL,
        )
        return Client(self.cluster, set_as_default=False)

    def close(self) -> None:
        """Close the cluster; kill worker processes that do not end."""
        client, cluster, pids = self.client, self.cluster, self.pids
        self.client, self.cluster, self.pids = None, None, {}
        with contextlib.suppress(Exception):  # a broken cluster may fail to close in any way
            if client is not None:
                client.close(timeout=CLOSING)
        with contextlib.suppress(Exception):
            if cluster is not None:
                cluster.close(timeout=CLOSING)
        for pid in pids.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def healthy(self) -> bool:
        """Return whether the workers are the ones it started with."""
        try:
            return self.client is not None and self.client.run(os.getpid) == self.pids
        except Exception:
            return False

    def measure(self, workload: Workload, repetition: int) -> Measurement:
        """Run a workload once and measure it. A run that fails is a measurement too."""
        missing = workload.missing()
        if missing:
            error = f"not run: needs {', '.join(missing)}"
            return Measurement(workload.name, self.policy, repetition, error=error)
        assert self.client is not None
        try:
            with self.client.as_current():  # some collections look for a cluster as they are built
                return self.attempt(self.client, workload, repetition)
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            self.close()  # the next run gets a cluster in a known state
            self.open()
            return Measurement(workload.name, self.policy, repetition, error=reason)

    def report(self) -> dict[str, Any] | None:
        """Return the plugin's report; None under stock."""
        assert self.client is not None
        return self.client.run_on_scheduler(plugin_report)  # type: ignore[no-any-return]  # untyped there

    def attempt(self, client: Client, workload: Workload, repetition: int) -> Measurement:
        """Run a workload once and measure it; failures are raised."""
        inputs = workload.inputs(self.setting.parameters)
        collections = None
        if not workload.persist:
            collections = workload.expression(self.setting.parameters, *inputs)
        gc.collect()
        client.run(trim_memory)
        client.run(probes.reset_traffic)
        mapped = sum(client.run(probes.read_mapped).values())
        client.run_on_scheduler(probes.reset_probe)
        with probes.PssSampler(self.pids.values() if self.measures_pss else ()) as pss:
            used, used_by_scheduler = self._cpu(), self._scheduler_cpu()
            start = time.perf_counter()
            if collections is None:
                inputs = tuple(client.persist(list(inputs)))
                wait(inputs, timeout=self.setting.timeout)
                if workload.kind is Kind.ELEMENTWISE:  # only the arithmetic is timed
                    start = time.perf_counter()
                collections = workload.expression(self.setting.parameters, *inputs)
            results = self._compute(client, collections)
            seconds = time.perf_counter() - start
            cpu = self._cpu() - used - pss.spent
            scheduler_cpu = self._scheduler_cpu() - used_by_scheduler - pss.spent
        del inputs, collections
        self.settle(client)
        if not self.healthy():
            raise RunFailed("a worker died")
        managed, sent = client.run_on_scheduler(probes.read_probe)
        mapped = sum(client.run(probes.read_mapped).values()) - mapped
        return Measurement(
            workload=workload.name,
            policy=self.policy,
            repetition=repetition,
            seconds=seconds,
            cpu=cpu,
            scheduler_cpu=scheduler_cpu,
            moved=probes.bytes_between_workers(client.run(probes.read_traffic)) + mapped,
            mapped=mapped,
            managed=managed,
            pss=pss.peak,
            sent=sent,
            digest=digest(results),
        )

    def _cpu(self) -> float:
        return probes.cpu_seconds(self.pids.values())

    def _scheduler_cpu(self) -> float:
        return probes.cpu_seconds(())  # client and scheduler are in this process

    def _compute(self, client: Client, collections: tuple[Any, ...]) -> list[Any]:
        futures = client.compute(list(collections))
        wait(futures, timeout=self.setting.timeout)
        states = Counter(future.status for future in futures)
        if set(states) != {"finished"}:
            failed = next(future for future in futures if future.status != "finished")
            if failed.status == "error":
                raise RunFailed(repr(failed.exception(timeout=10)))
            raise RunFailed(f"futures ended as {dict(states)}")
        gathered: list[Any] = client.gather(futures)
        return gathered

    def settle(self, client: Client) -> None:
        """Wait until the scheduler has forgotten all tasks; RunFailed after the timeout."""
        deadline = time.monotonic() + self.setting.timeout
        gc.collect()
        while remaining := client.run_on_scheduler(tasks_known):
            if time.monotonic() > deadline:
                raise RunFailed(f"the scheduler still holds {remaining} tasks")
            time.sleep(0.01)
