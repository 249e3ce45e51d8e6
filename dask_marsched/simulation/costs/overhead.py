"""What the processes of a cluster need besides tasks, against what the twin takes it to be."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from dask_marsched.simulation.cluster.spec import cluster_spec

#: Seconds of processor time below which a recording is too short to tell anything.
_LEAST = 0.05


@dataclasses.dataclass(frozen=True)
class LoopLoad:
    """What the event loop of a worker did during a recording.

    Attributes
    ----------
    seconds : float
        Processor time.
    sent, nbytes : int
        Transfers to other workers, and their bytes.
    """

    seconds: float
    sent: int
    nbytes: int


def overhead_of(loops: Iterable[LoopLoad], tasks: int, elapsed: float) -> float:
    """Return how many times as long as by the twin's defaults event loops took.

    Those were measured once, on one machine. Another is faster or slower, and with several
    processes on few cores each of them is slower than alone.

    Parameters
    ----------
    loops
        Of each worker.
    tasks
        How many tasks they ran together.
    elapsed
        Seconds that the recording lasted.

    Returns
    -------
    float
        For ``overhead`` of :class:`ClusterSpec`; 1 where there is too little to tell.
    """
    loops = list(loops)
    usual = cluster_spec(
        None, workers=1, threads=1, memory_limit=1, bandwidth=1, latency=0, cores=None, seed=0
    )
    # A worker hears of a task and tells of its end; each transfer has two ends.
    expected = tasks * (usual.task_overhead + 2 * usual.batch_cost)
    expected += 2 * usual.transfer_cost * sum(loop.sent for loop in loops)
    expected += 2 / usual.copy_bandwidth * sum(loop.nbytes for loop in loops)
    expected += usual.idle_load * elapsed * len(loops)
    measured = sum(loop.seconds for loop in loops)
    return measured / expected if min(measured, expected) > _LEAST else 1.0
