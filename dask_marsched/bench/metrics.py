"""Measurements and what is made of them: medians, ratios to stock, geometric means. Pure."""

from __future__ import annotations

import hashlib
import math
import pickle
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

STOCK = "stock"
FRISKY = "frisky"
REFERENCES = frozenset({STOCK, FRISKY})  # what others are compared with; no bar applies to them
MOVING = 5 * 2**20  # bytes moved under stock above which a workload enters the geometric means
SMALLEST_RATIO = 0.01  # a ratio of nearly 0 would decide a geometric mean alone


@dataclass(frozen=True)
class Measurement:
    """One run of one workload under one policy.

    Attributes
    ----------
    workload, policy : str
        What ran, and under what.
    repetition : int
        From 0.
    seconds : float or None
        From handing the graph to the client until the results are there.
    moved : int or None
        Bytes between workers; None where they cannot be known.
    managed : int or None
        Peak of the managed bytes summed over the workers; None where they cannot be known.
    pss : int or None
        Peak of the PSS summed over the worker processes, bytes.
    sent : int or None
        Tasks sent to workers.
    digest : str or None
        Hash of the results' bytes.
    cpu : float or None
        CPU seconds of the whole cluster, with client and scheduler.
    error : str or None
        Why the run failed; the others are None then.
    mapped : int or None
        Of the bytes moved, those of results that one worker mapped out of another's shared memory.
    again : int or None
        Tasks sent again although they had a result before; None where nobody counts them.
    """

    workload: str
    policy: str
    repetition: int
    seconds: float | None = None
    moved: int | None = None
    managed: int | None = None
    pss: int | None = None
    sent: int | None = None
    digest: str | None = None
    cpu: float | None = None
    error: str | None = None
    mapped: int | None = None
    again: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        return asdict(self)


AXES = ("moved", "managed", "pss", "seconds", "cpu", "sent")


@dataclass(frozen=True)
class Bar:
    """What the ratios to stock along one axis must not exceed.

    Attributes
    ----------
    mean : float
        For the geometric mean over the workloads that move data.
    worst : float
        For each of them.
    """

    mean: float
    worst: float


BARS: Mapping[str, Bar] = {
    "moved": Bar(0.15, 1.0),
    "managed": Bar(0.85, 1.10),
    "seconds": Bar(0.95, 1.10),
}
OVERHEAD_BAR = 1.05  # of stock's wall time, for workloads that are there to show the overhead


@dataclass(frozen=True)
class Row:
    """A workload under a policy, over all repetitions.

    Attributes
    ----------
    workload, policy : str
        What ran, and under what.
    overhead : bool
        Whether the workload is there to show the overhead of a task.
    runs, failed : int
        Repetitions, and how many of them failed.
    medians : dict
        By axis, the median over the repetitions; None where nothing was measured.
    ratios : dict
        By axis, the median of the ratios to the base in the same repetition; None likewise. The
        base is stock unless `aggregate` was told otherwise.
    identical : bool or None
        Whether all results equal stock's of the same repetition, bit for bit; None where there
        is nothing to compare.
    moves : bool
        Whether it moves more than 5 MiB under stock.
    errors : tuple of str
        The distinct errors of the failed runs.
    """

    workload: str
    policy: str
    overhead: bool
    runs: int
    failed: int
    medians: dict[str, float | None]
    ratios: dict[str, float | None]
    identical: bool | None
    moves: bool
    errors: tuple[str, ...]

    def judged(self) -> bool:
        """Tell whether any bar applies to this row."""
        return self.policy.partition("#")[0] not in REFERENCES and (self.moves or self.overhead)

    def misses(self) -> tuple[str, ...]:
        """Axes on which this row is above the bar for a single workload, and other faults."""
        found = ["failed"] if self.failed else []
        if self.identical is False:
            found.append("results differ")
        if not self.judged():
            return tuple(found)
        limits = {axis: bar.worst for axis, bar in BARS.items()} if self.moves else {}
        if self.overhead:
            limits["seconds"] = OVERHEAD_BAR
        for axis, limit in limits.items():
            ratio = self.ratios[axis]
            if ratio is not None and _above(ratio, limit):
                found.append(axis)
        return tuple(found)


@dataclass(frozen=True)
class Summary:
    """One axis under one policy, over the workloads that move more than 5 MiB under stock.

    Attributes
    ----------
    policy, axis : str
        Under what, and which axis.
    workloads : int
        How many entered.
    mean : float or None
        Geometric mean of the ratios.
    worst : float or None
        The largest ratio.
    worst_workload : str or None
        Whose it is.
    """

    policy: str
    axis: str
    workloads: int
    mean: float | None
    worst: float | None
    worst_workload: str | None

    def verdict(self) -> bool | None:
        """Tell whether the bars are met; None where the axis has none or nothing entered."""
        bar = BARS.get(self.axis)
        if bar is None or self.mean is None or self.worst is None:
            return None
        if self.policy.partition("#")[0] in REFERENCES:
            return None
        return not _above(self.mean, bar.mean) and not _above(self.worst, bar.worst)


def _above(ratio: float, limit: float) -> bool:
    """Compare to two decimals: a few hundred bytes of messages are not a missed bar."""
    return round(ratio, 2) > limit


def digest(results: Iterable[Any]) -> str:
    """Hash results by their bytes, so that NaNs and signed zeros count too.

    Arrays are hashed by dtype, shape and bytes, dataframes and series by index and values,
    anything else by its pickle.
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
    """Return ``value / stock``; None where one is unknown or stock's is 0."""
    if value is None or not stock:
        return None
    return value / stock


def median(values: Iterable[float | None]) -> float | None:
    """Return the median of the values that are known; None if none is."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def geometric_mean(ratios: Iterable[float]) -> float | None:
    """Return the geometric mean; None of nothing. Ratios below 0.01 count as 0.01."""
    logarithms = [math.log(max(value, SMALLEST_RATIO)) for value in ratios]
    return math.exp(sum(logarithms) / len(logarithms)) if logarithms else None


def aggregate(
    measurements: Sequence[Measurement], overhead: Iterable[str] = (), base: str = STOCK
) -> list[Row]:
    """Return a row for each workload and policy, in the order in which they first ran.

    Parameters
    ----------
    measurements : sequence of Measurement
        All runs.
    overhead : iterable of str
        Names of the workloads that are there to show the overhead.
    base : str
        The policy that the ratios relate to. Which workloads move enough to enter the geometric
        means is decided under stock all the same.
    """
    overhead = frozenset(overhead)
    runs: dict[tuple[str, str], dict[int, Measurement]] = {}
    for m in measurements:
        runs.setdefault((m.workload, m.policy), {})[m.repetition] = m
    workloads = dict.fromkeys(workload for workload, _ in runs)
    policies = dict.fromkeys(policy for _, policy in runs)
    return [
        _row(
            runs[w, p],
            runs.get((w, base), {}),
            overhead=w in overhead,
            stock_moved=median(m.moved for m in runs.get((w, STOCK), {}).values()),
        )
        for w in workloads
        for p in policies
        if (w, p) in runs
    ]


def _row(
    own: Mapping[int, Measurement],
    base: Mapping[int, Measurement],
    overhead: bool,
    stock_moved: float | None,
) -> Row:
    first = next(iter(own.values()))
    pairs = [(m, base[i]) for i, m in own.items() if i in base and not m.error]
    compared = [(m.digest, b.digest) for m, b in pairs if m.digest and b.digest]
    return Row(
        workload=first.workload,
        policy=first.policy,
        overhead=overhead,
        runs=len(own),
        failed=sum(m.error is not None for m in own.values()),
        medians={axis: median(getattr(m, axis) for m in own.values()) for axis in AXES},
        ratios={
            axis: median(ratio(getattr(m, axis), getattr(b, axis)) for m, b in pairs)
            for axis in AXES
        },
        identical=all(a == b for a, b in compared) if compared else None,
        moves=stock_moved is not None and stock_moved > MOVING,
        errors=tuple(dict.fromkeys(m.error for m in own.values() if m.error)),
    )


def summarise(rows: Sequence[Row], policy: str) -> list[Summary]:
    """Return a summary of each axis for one policy."""
    summaries = []
    for axis in AXES:
        ratios = {
            row.workload: value
            for row in rows
            if row.policy == policy and row.moves and (value := row.ratios[axis]) is not None
        }
        worst = max(ratios, key=lambda name: ratios[name], default=None)
        summaries.append(
            Summary(
                policy=policy,
                axis=axis,
                workloads=len(ratios),
                mean=geometric_mean(ratios.values()),
                worst=ratios[worst] if worst is not None else None,
                worst_workload=worst,
            )
        )
    return summaries
