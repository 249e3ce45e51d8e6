"""Computes the digest by which the plan of a resubmitted graph is found."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Hashable, Sequence

import numpy as np

from dask_marsched.core.graph import OperandGraph
from dask_marsched.core.plan import WorkerSlot


def plan_digest(
    graph: OperandGraph, workers: Sequence[WorkerSlot], pending: Collection[int]
) -> bytes:
    """Return a digest of everything that an assignment policy reads.

    Of keys only the structure counts, as their tokens differ with each submission. Edges and sizes
    are part of the digest, so even a collision could only give a worse plan.
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
