"""Compares the results of a run's clusters, and counts the exceptions that the plugin caught."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from dask_marsched.bench.cluster import BenchCluster
from dask_marsched.bench.metrics import Measurement
from dask_marsched.bench.workloads import Workload
from dask_marsched.status import Status, status

#: Of sums of floats in the order of arrival: relative differences up to here are none.
ROUNDING = 1e-9


class Findings:
    """What the clusters of a run find besides their measurements.

    Parameters
    ----------
    rounding
        Results are equal if their numbers' relative difference is at most this.

    Attributes
    ----------
    first : dict
        By workload, the result to which the others are compared.
    differences : dict
        By workload, the largest relative difference found.
    exceptions : Counter
        Those caught by the plugin, by workload and hook.
    """

    def __init__(self, rounding: float = 0.0) -> None:
        self.rounding = rounding
        self.first: dict[str, Any] = {}
        self.differences: dict[str, float] = {}
        self.exceptions: Counter[str] = Counter()

    @property
    def faulty(self) -> bool:
        """Whether the plugin caught an exception."""
        return bool(self.exceptions)

    def compare(self, workload: str, result: Any) -> bool:
        """Return whether a result equals the workload's first one."""
        found = difference(self.first.setdefault(workload, result), result)
        self.differences[workload] = max(found, self.differences.get(workload, 0.0))
        return found <= self.rounding

    def notes(self) -> Iterator[str]:
        """Return a line on each finding."""
        if self.differences:
            worst = max(self.differences, key=self.differences.__getitem__)
            yield f"Largest relative difference: {self.differences[worst]:.1e} in {worst}."
        for where, count in self.exceptions.items():
            yield f"{count} exceptions in {where}"


class ComparingCluster(BenchCluster):
    """A cluster that tells its results, and the exceptions that the plugin caught, to findings."""

    def __init__(self, findings: Findings, *args: Any) -> None:
        super().__init__(*args)
        self.findings = findings
        self.result: Any = None
        self.caught: Counter[str] = Counter()

    def open(self) -> None:
        """Start the cluster, which has caught nothing yet."""
        super().open()
        self.caught = Counter()

    def _compute(self, client: Any, collections: tuple[Any, ...]) -> list[Any]:
        self.result = None
        results = self._results(client, collections)
        self.result = results[0]
        return results

    def _results(self, client: Any, collections: tuple[Any, ...]) -> list[Any]:
        return super()._compute(client, collections)

    def measure(self, workload: Workload, repetition: int) -> Measurement:
        """Run a workload once, measure it, and compare its result with the first."""
        measured = super().measure(workload, repetition)
        assert self.client is not None
        now = caught(status(self.client))
        for hook, count in (now - self.caught).items():
            self.findings.exceptions[f"{workload.name}: {hook}"] += count
        self.caught = now
        if measured.error:
            return measured
        same = self.findings.compare(workload.name, self.result)
        return replace(measured, digest="as the first" if same else measured.digest)


def caught(state: Status) -> Counter[str]:
    """Return the exceptions that the plugin caught on a cluster, by hook."""
    found = Counter(state.exceptions)
    for parts in state.workers.values():
        for part in parts.values():
            found.update((part or {}).get("exceptions", {}))
    return found


def difference(one: Any, other: Any) -> float:
    """Return the largest relative difference of two results' numbers; infinite if others differ.

    The rows of frames and series may be in any order. Of their index only named levels count.
    """
    if isinstance(one, list | tuple):
        if len(one) != len(other):
            return float("inf")
        return max(map(difference, one, other), default=0.0)
    if hasattr(one, "to_frame"):  # pandas, without importing it
        one, other = one.to_frame(), other.to_frame()
    if hasattr(one, "columns"):
        return _of_frames(_with_index(one), _with_index(other))
    return _of_arrays(np.asarray(one), np.asarray(other))


def _with_index(frame: Any) -> Any:
    return frame if None in frame.index.names else frame.reset_index()


def _of_frames(one: Any, other: Any) -> float:
    if list(one.columns) != list(other.columns) or len(one) != len(other):
        return float("inf")
    floats = [c for c in one.columns if one[c].dtype.kind == "f"]
    rest = [c for c in one.columns if c not in floats]
    one, other = (f.sort_values([*rest, *floats], ignore_index=True) for f in (one, other))
    if not one[rest].equals(other[rest]):
        return float("inf")
    return _of_arrays(*(f[floats].to_numpy(float) for f in (one, other)))


def _of_arrays(one: Any, other: Any) -> float:
    if one.shape != other.shape:
        return float("inf")
    if one.dtype.kind not in "fc":
        return 0.0 if np.array_equal(one, other) else float("inf")
    if not np.array_equal(np.isnan(one), np.isnan(other)):
        return float("inf")
    apart = np.abs(one - other) / np.maximum(np.maximum(np.abs(one), np.abs(other)), 1e-300)
    return float(np.nanmax(apart, initial=0.0))
