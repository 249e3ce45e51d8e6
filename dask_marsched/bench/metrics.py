"""Aggregates measurements to medians, ratios to stock and geometric means."""

from __future__ import annotations

import hashlib
import pickle
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

STOCK = "stock"
MOVING = 5 * 2**20  # bytes moved under stock above which a workload enters the geometric means
SMALLEST_RATIO = 0.01  # a ratio of nearly 0 would decide a geometric mean alone


@dataclass(frozen=True)
class Measurement:
    """One run of one workload under one policy; fields are None if they could not be measured."""

    workload: str
    policy: str
    repetition: int
    seconds: float | None = None  #: from handing in the graph until the results are there
    moved: int | None = None  #: bytes between workers
    managed: int | None = None  #: peak of the managed bytes summed over the workers
    pss: int | None = None  #: peak of the PSS summed over the worker processes, bytes
    sent: int | None = None  #: tasks sent to workers
    digest: str | None = None  #: hash of the results' bytes
    cpu: float | None = None  #: CPU seconds of the whole cluster, with client and scheduler
    scheduler_cpu: float | None = None  #: CPU seconds of scheduler and client
    error: str | None = None  #: why the run failed
    mapped: int | None = None  #: part of ``moved`` that was mapped from shared memory
    again: int | None = None  #: tasks sent again although they had a result before


AXES = ("moved", "managed", "pss", "seconds", "cpu", "scheduler_cpu", "sent")


@dataclass(frozen=True)
class Row:
    """A workload under a policy, over all repetitions."""

    workload: str
    policy: str
    runs: int
    failed: int
    medians: dict[str, float | None]  #: by axis, over the repetitions
    ratios: dict[str, float | None]  #: by axis, median ratio to the base's same repetition
    identical: bool | None  #: bit for bit, with stock in the same repetition; None if unknown
    moves: bool  #: whether it moves more than 5 MiB under stock
    errors: tuple[str, ...]  #: the distinct ones


@dataclass(frozen=True)
class Summary:
    """One axis under one policy, over the workloads that move more than 5 MiB under stock."""

    policy: str
    axis: str
    workloads: int  #: number of workloads with a ratio
    mean: float  #: geometric mean of the ratios
    worst: float  #: the largest ratio
    worst_workload: str


def digest(results: Iterable[Any]) -> str:
    """Return a hash of the results' bytes, so that NaNs and signed zeros count too.

    Anything but arrays, dataframes and series is hashed by its pickle.
    """
    state = hashlib.sha256()
    for result in results:
        _feed(state, result)
    return state.hexdigest()


def _feed(state: Any, result: Any) -> None:
    if hasattr(result, "index") and hasattr(result, "to_numpy"):  # pandas, without importing it
        _feed(state, result.index.to_numpy())
        result = result.to_numpy()
    if isinstance(result, np.ndarray | np.generic) and not result.dtype.hasobject:
        array = np.ascontiguousarray(result)
        state.update(f"{array.dtype.str}{np.shape(result)}".encode())
        state.update(array.tobytes())
    else:
        state.update(pickle.dumps(result, protocol=5))


def ratio(value: float | None, stock: float | None) -> float | None:
    """Return ``value / stock``; None if one is unknown or stock's is 0."""
    if value is None or not stock:
        return None
    return value / stock


def median(values: Iterable[float | None]) -> float | None:
    """Return the median of the known values; None if there are none."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def geometric_mean(ratios: Iterable[float]) -> float | None:
    """Return the geometric mean, None for no ratios. Ratios below 0.01 count as 0.01."""
    known = [max(value, SMALLEST_RATIO) for value in ratios]
    return statistics.geometric_mean(known) if known else None


def aggregate(measurements: Sequence[Measurement], base: str = STOCK) -> list[Row]:
    """Return a row for each workload and policy, in the order in which they first ran.

    Ratios relate to the policy ``base``. A workload enters the geometric means by the bytes that it
    moves under stock, whatever the base.
    """
    runs: dict[tuple[str, str], dict[int, Measurement]] = {}
    for m in measurements:
        runs.setdefault((m.workload, m.policy), {})[m.repetition] = m
    workloads = dict.fromkeys(workload for workload, _ in runs)
    policies = dict.fromkeys(policy for _, policy in runs)
    rows = []
    for w in workloads:
        moved = median(m.moved for m in runs.get((w, STOCK), {}).values())
        moves = moved is not None and moved > MOVING
        rows += [
            _row(runs[w, p], runs.get((w, base), {}), moves) for p in policies if (w, p) in runs
        ]
    return rows


def _row(own: Mapping[int, Measurement], base: Mapping[int, Measurement], moves: bool) -> Row:
    first = next(iter(own.values()))
    pairs = [(m, base[i]) for i, m in own.items() if i in base and not m.error]
    compared = [(m.digest, b.digest) for m, b in pairs if m.digest and b.digest]
    return Row(
        workload=first.workload,
        policy=first.policy,
        runs=len(own),
        failed=sum(m.error is not None for m in own.values()),
        medians={axis: median(getattr(m, axis) for m in own.values()) for axis in AXES},
        ratios={
            axis: median(ratio(getattr(m, axis), getattr(b, axis)) for m, b in pairs)
            for axis in AXES
        },
        identical=all(a == b for a, b in compared) if compared else None,
        moves=moves,
        errors=tuple(dict.fromkeys(m.error for m in own.values() if m.error)),
    )


def summarise(rows: Sequence[Row], base: str = STOCK) -> list[Summary]:
    """Return a summary of each axis for each policy but the base, if any workload has a ratio."""
    summaries = []
    for policy in dict.fromkeys(row.policy for row in rows if row.policy != base):
        for axis in AXES:
            ratios = {
                row.workload: value
                for row in rows
                if row.policy == policy and row.moves and (value := row.ratios[axis]) is not None
            }
            mean = geometric_mean(ratios.values())
            if mean is not None:
                worst = max(ratios, key=ratios.__getitem__)
                summaries.append(Summary(policy, axis, len(ratios), mean, ratios[worst], worst))
    return summaries
