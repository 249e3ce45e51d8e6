"""Compares the measured load of event loops with the simulated cluster's defaults."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from dask_marsched.simulation.cluster.spec import cluster_spec

#: Seconds of processor time below which a recording is too short.
_LEAST = 0.05


class LoopLoad(NamedTuple):
    """Processor time of a worker's event loop, and the transfers that it sent, with their bytes."""

    seconds: float
    sent: int
    nbytes: int


def overhead_of(loops: Iterable[LoopLoad], tasks: int, elapsed: float) -> float:
    """Return the ratio of the processor time of event loops to that of the simulation's defaults.

    It is ``overhead`` of `ClusterSpec`, which depends on the machine and on how many processes
    share its cores; 1 if the recording, of ``tasks`` in ``elapsed`` seconds, is too short.
    """
    loops = list(loops)
    usual = cluster_spec(
        None, workers=1, threads=1, memory_limit=1, bandwidth=1, latency=0, cores=None, seed=0
    )
    # A worker receives each task and reports its end; each transfer has two ends.
    expected = tasks * (usual.task_overhead + 2 * usual.batch_cost)
    expected += 2 * usual.transfer_cost * sum(loop.sent for loop in loops)
    expected += 2 / usual.copy_bandwidth * sum(loop.nbytes for loop in loops)
    expected += usual.idle_load * elapsed * len(loops)
    measured = sum(loop.seconds for loop in loops)
    return measured / expected if min(measured, expected) > _LEAST else 1.0
