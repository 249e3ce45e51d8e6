"""Defines size and speed of a simulated cluster, and checks them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from dask_marsched.simulation.amounts import read_bytes, read_rate, read_seconds


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClusterSpec:
    """Size and speed of a simulated cluster.

    Attributes
    ----------
    workers, threads : int
        Number of workers at the start, and of threads of each.
    memory_limit : int
        Bytes of memory of each worker; the shares in ``distributed.worker.memory`` apply to it.
    bandwidth, local_bandwidth : float
        Bytes per second of a host's network interface in either direction, and between workers
        of the same host.
    latency : float
        Seconds that a message takes.
    hosts : int
        Hosts over which the workers are dealt in contiguous blocks.
    cores : float or None
        Cores of each host, or None for unlimited ones. If given, messages and transfers take
        their share of them, and the scheduler runs on the first host, as in a ``LocalCluster``.
    disk_bandwidth : float
        Bytes per second that the disk of a host reads or writes.
    resources : dict
        Abstract resources of each worker, such as ``{"GPU": 1}``.
    task_overhead : float
        Seconds of a worker for each task besides the task itself.
    message_cost, batch_cost : float
        Seconds of the scheduler for each message, and of a process for each batch of messages
        that it sends or receives.
    transfer_cost, copy_bandwidth : float
        Seconds of each end of any transfer between workers, and bytes per second that it copies.
    idle_load : float
        Cores that the periodic work of a process takes, if ``cores`` is given.
    overhead : float
        Factor for the defaults of `task_overhead`, `message_cost`, `batch_cost`,
        `transfer_cost`, `idle_load` and the copies of `copy_bandwidth`. A recording tells it;
        otherwise it is 1.2 in `simulate`.
    noise : float
        Relative spread of the durations of tasks, drawn from the seed and the key.
    seed : int
        Seed of that noise, and of what stock Dask leaves to the hash seed.
    """

    workers: int
    threads: int
    memory_limit: int
    bandwidth: float
    local_bandwidth: float
    latency: float
    hosts: int
    cores: float | None
    disk_bandwidth: float = 1e9
    resources: Mapping[str, float]
    # The costs were measured as CPU time of the processes of a LocalCluster (4 workers, distributed
    # 2026.8.0): 1.3 ms of a worker and 0.7 ms of the scheduler for each of 2,000 trivial tasks;
    # 1.0 ms of either end for each small transfer; 0.4 ns of either end for each byte of large
    # ones; and 3 % of a core for each idle process.
    task_overhead: float = 0.0007
    message_cost: float = 0.0001
    batch_cost: float = 0.0003
    transfer_cost: float = 0.001
    copy_bandwidth: float = 2.5e9
    idle_load: float = 0.03
    overhead: float = 1.0
    noise: float = 0.05
    seed: int


_SLOWED = ("task_overhead", "message_cost", "batch_cost", "transfer_cost", "idle_load")
_RATES = ("bandwidth", "local_bandwidth", "disk_bandwidth", "copy_bandwidth")
_TIMES = ("latency", "task_overhead", "message_cost", "batch_cost", "transfer_cost")


def cluster_spec(hosts: int | None, **given: Any) -> ClusterSpec:
    """Return the cluster for the arguments of `simulate`; TypeError or ValueError for bad ones."""
    if hosts is None:
        hosts = given["workers"] if given["cores"] is None else 1
    explicit = given.keys()
    given = {"hosts": hosts} | given
    given.setdefault("local_bandwidth", given["bandwidth"])
    for name, value in given.items():
        if name not in ClusterSpec.__dataclass_fields__:
            accepted = ", ".join(sorted(ClusterSpec.__dataclass_fields__))
            raise TypeError(f"unknown argument {name!r}; the cluster's are {accepted}")
        if name in _RATES:
            given[name] = read_rate(name, value)
        elif name in _TIMES:
            given[name] = read_seconds(name, value, zero=True)
    given["memory_limit"] = read_bytes("memory_limit", given["memory_limit"])
    given["resources"] = dict(given.get("resources") or {})
    spec = ClusterSpec(**given)
    _check(spec)
    factors = dict.fromkeys(_SLOWED, spec.overhead) | {"copy_bandwidth": 1 / spec.overhead}
    slowed = {name: getattr(spec, name) * x for name, x in factors.items() if name not in explicit}
    return dataclasses.replace(spec, **slowed)


def _check(spec: ClusterSpec) -> None:
    if not isinstance(spec.seed, int):
        raise ValueError(f"seed must be a whole number, not {spec.seed!r}")
    for name in ("cores", "idle_load", "overhead", "noise"):
        value = getattr(spec, name)
        if not isinstance(value, int | float) and not (name == "cores" and value is None):
            raise ValueError(f"{name} must be a number, not {value!r}")
    for name, valid, accepted in _conditions(spec):
        if not valid:
            raise ValueError(f"{name} must be {accepted}, not {getattr(spec, name)}")
    for name, amount in spec.resources.items():
        if amount <= 0:
            raise ValueError(f"the resource {name!r} must be more than 0, not {amount}")


def _conditions(spec: ClusterSpec) -> Iterator[tuple[str, bool, str]]:
    """Yield the name of an attribute, whether it is valid, and the valid values."""
    for name in ("workers", "threads"):
        value = getattr(spec, name)
        yield name, isinstance(value, int) and value >= 1, "1 or more"
    hosts = isinstance(spec.hosts, int) and 1 <= spec.hosts <= spec.workers
    yield "hosts", hosts, f"a whole number between 1 and {spec.workers}"
    yield "cores", spec.cores is None or spec.cores > 0, "more than 0, or None"
    yield "idle_load", spec.idle_load >= 0, "0 cores or more"
    yield "overhead", spec.overhead > 0, "more than 0"
    yield "noise", 0 <= spec.noise < 1, "at least 0 and less than 1"
