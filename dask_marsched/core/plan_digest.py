"""The digest of what a plan follows from, by which plans of graphs submitted again are found."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Hashable, Sequence

import numpy as np

from dask_marsched.core.graph import OperandGraph
from dask_marsched.core.plan import WorkerSlot


def plan_digest(
    graph: OperandGraph, workers: Sequence[WorkerSlot], pending: Collection[int]
) -> bytes:
    """Return a digest of all that an assignment policy reads.

    Parameters
    ----------
    graph
        The graph. Of its keys only the structure counts: which share a name, and their indices.
        Names hold tokens, which differ each time a computation is submitted.
    workers
        The workers.
    pending
        The initial operands to assign.

    Returns
    -------
    bytes
        Equal digests mean equal plans. The numbers of operands, their edges and sizes are part of
        it, so that even a plan found by a collision could at worst be less good.
    """
    found = hashlib.blake2b(digest_size=20)
    everything = len(pending) == len(graph)
    for ints in (
        graph.inputs.starts,
        graph.inputs.flat,
        graph.home,
        sorted(graph.kept),
        [] if everything else sorted(pending),
    ):
        found.update(len(ints).to_bytes(8, "little"))
        found.update(np.asarray(ints, dtype=np.int64).data)
    for floats in (graph.nbytes, graph.home_bytes):
        found.update(np.asarray(floats, dtype=np.float64).data)
    found.update(graph.known)
    found.update(repr((everything, [_slot(w) for w in workers], _places(graph.keys))).encode())
    return found.digest()


def _slot(worker: WorkerSlot) -> tuple[Hashable, ...]:
    return worker.nthreads, worker.memory_limit, worker.bound, worker.host


def _places(keys: Sequence[Hashable]) -> list[tuple[Hashable, ...]]:
    """Return for each key the number of its name, in order of appearance, and its indices."""
    numbers: dict[Hashable, int] = {}
    number = numbers.setdefault
    return [
        (number(key[0], len(numbers)), *key[1:])
        if isinstance(key, tuple) and key
        else (number(key, len(numbers)),)
        for key in keys
    ]
