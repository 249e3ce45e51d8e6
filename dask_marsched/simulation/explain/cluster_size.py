"""Determines the size of the cluster that a computation is explained for."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Mapping
from typing import Any

import distributed
from dask.utils import format_bytes
from distributed.comm import get_address_host

from dask_marsched.simulation.amounts import read_bytes


@dataclasses.dataclass(frozen=True)
class ClusterSize:
    """Number of workers, and threads and bytes of memory of each."""

    workers: int
    threads: int
    memory_limit: int
    source: str  #: Origin of these numbers.
    details: dict[str, Any]  #: Further arguments of `simulate`.
    notes: list[str]  #: Differences between the cluster and its simulation.

    def with_workers(self, workers: int) -> dict[str, Any]:
        """Return the arguments of `simulate` for another number of workers on similar hosts."""
        hosts = self.details.get("hosts")
        if hosts is None:
            return {"workers": workers}
        return {"workers": workers, "hosts": max(1, round(hosts * workers / self.workers))}


def cluster_size(
    client: distributed.Client | None,
    workers: int | None,
    threads: int | None,
    memory_limit: int | str | None,
    details: Mapping[str, Any],
) -> ClusterSize:
    """Return the requested size, completed by the client's cluster or by defaults.

    TypeError: the client is asynchronous, or no client. ValueError: no workers, or a bad amount.
    """
    found, notes = ClusterSize(4, 1, 16 * 2**30, "assumed", {}, []), []
    if client is not None:
        found = _of_client(client)
        notes = found.notes
    given = [value for value in (workers, threads, memory_limit) if value is not None]
    source = found.source if not given or client is not None else "as asked for"
    hosts = found.details if workers is None else {}
    for name, number in (("workers", workers), ("threads", threads)):
        if number is not None and number < 1:
            raise ValueError(f"{name} must be 1 or more, not {number}")
    return ClusterSize(
        workers or found.workers,
        threads or found.threads,
        found.memory_limit if memory_limit is None else read_bytes("memory_limit", memory_limit),
        source,
        {**hosts, **details},
        notes,
    )


def _of_client(client: distributed.Client) -> ClusterSize:
    if not isinstance(client, distributed.Client):
        raise TypeError(f"client must be a distributed.Client, not {type(client).__name__}")
    if client.asynchronous:
        raise TypeError("client is asynchronous; pass workers, threads and memory_limit instead")
    infos = client.scheduler_info(n_workers=-1)["workers"]
    if not infos:
        raise ValueError("the client's cluster has no workers; pass workers=... for those to come")
    threads = Counter(info["nthreads"] for info in infos.values())
    limits = [info["memory_limit"] for info in infos.values()]
    addresses = {info.get("host") or get_address_host(address) for address, info in infos.items()}
    notes = []
    if len(threads) > 1:
        notes.append("The workers differ in threads; the most common number is simulated.")
    if len(set(limits)) > 1:
        notes.append(
            f"The workers differ in memory, up to {format_bytes(max(limits))}; the least is "
            "simulated."
        )
    if not min(limits):
        raise ValueError("the client's workers have no memory limit; pass memory_limit=...")
    details: dict[str, Any] = {"hosts": len(addresses)}
    if isinstance(client.cluster, distributed.LocalCluster):
        details["cores"] = os.cpu_count()
    where = client.scheduler.address if client.scheduler is not None else "the client's cluster"
    return ClusterSize(
        len(infos), threads.most_common(1)[0][0], min(limits), f"as at {where}", details, notes
    )
