"""Collects the metrics in the workers' heartbeats: memory, transfers, fused kernels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import dask.config

from dask_marsched.core.series import Series
from dask_marsched.worker.heartbeat_metrics import METRIC

#: Sums over all workers, in bytes, that are recorded over time.
TOTALS = ("limit", "quota", "used", "promised", "queued", "process", "private", "shared", "disk")
_OF_QUOTA = ("used", "promised", "queued", "deferrals", "forced", "evictions")
#: Shares of the memory limit at which Dask's workers react.
_THRESHOLDS = ("target", "spill", "pause", "terminate")
#: Metrics that only grow, and are summed up.
_COUNTERS = frozenset(
    {
        "shared.by_handle",
        "shared.bytes_by_handle",
        "shared.bytes_by_comm",
        "interrupts.interrupted",
        "kernels.saved",
        "kernels.runs",
        "kernels.fused",
        "kernels.compiled",
    }
)
#: Most expressions remembered of removed workers.
_MOST_GONE = 200


class ObservedWorkers:
    """Records the metrics of the workers of one scheduler."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._totals = Series(TOTALS)
        self._last: dict[str, Mapping[str, Any]] = {}
        self._gone: dict[str, float] = defaultdict(float)
        self._gone_expressions: dict[tuple[str, str, str], list[float]] = {}

    def sample(self, now: float) -> None:
        """Record the sums."""
        sums = dict.fromkeys(TOTALS, 0.0)
        for ws in self._scheduler.workers.values():
            metric = ws.metrics.get(METRIC)
            if metric:
                self._last[ws.address] = metric
            row = _memory(ws)
            for name in TOTALS:
                sums[name] += row[name] or 0
        if self._totals.due(now):
            self._totals.add(now, [sums[name] for name in TOTALS])

    def left(self, address: str) -> None:
        """Forget a worker that was removed, but keep its counts in the sums."""
        metric = self._last.pop(address, None)
        if metric:
            for name, value in _counts(metric).items():
                self._gone[name] += value
            if len(self._gone_expressions) < _MOST_GONE:
                _merge(self._gone_expressions, metric)

    def memory(self, most: int) -> dict[str, Any]:
        """Return the answer of `Observer.memory`."""
        rows = [_memory(ws) for ws in self._scheduler.workers.values()]
        shown = rows
        if len(rows) > most:
            shown = sorted(rows, key=lambda row: -(row["process"] / (row["limit"] or 1e18)))[:most]
        # Names are mostly numbers: 2 comes before 10.
        shown.sort(key=lambda row: (len(row["name"]), row["name"]))
        quota = any(row["quota"] is not None for row in rows)
        return {
            "workers": shown,
            "more_workers": len(rows) - len(shown),
            "quota_on": quota,
            "total": self._totals.to_dict(),
            "thresholds": {
                name: _share(dask.config.get(f"distributed.worker.memory.{name}", None))
                for name in _THRESHOLDS
            },
        }

    def counts(self) -> dict[str, float]:
        """Return the sums of the workers' counters, including removed workers."""
        sums = defaultdict(float, self._gone)
        for metric in self._metrics():
            for name, value in _counts(metric).items():
                sums[name] += value
        return sums

    def workers_with(self, part: str) -> int:
        """Return the number of workers with a part."""
        return sum(part in metric for metric in self._metrics())

    def _metrics(self) -> list[Mapping[str, Any]]:
        return [ws.metrics.get(METRIC) or {} for ws in self._scheduler.workers.values()]

    def kernels(self, most: int) -> dict[str, Any]:
        """Return the answer of `Observer.kernels`."""
        merged = {key: list(row) for key, row in self._gone_expressions.items()}
        for metric in self._metrics():
            _merge(merged, metric)
        rows = sorted(merged.items(), key=lambda item: -abs(item[1][1]))
        sums = self.counts()
        return {
            "workers_on": self.workers_with("kernels"),
            "workers": len(self._scheduler.workers),
            "saved": sums["kernels.saved"],
            "runs": int(sums["kernels.runs"]),
            "fused": int(sums["kernels.fused"]),
            "compiled": sums["kernels.compiled"],
            "expressions": [
                {
                    **dict(zip(("text", "dtypes", "backend"), expression, strict=True)),
                    "runs": int(runs),
                    "saved": saved,
                    "compiled": compiled,
                    "given_up": int(given_up),
                    "workers": int(workers),
                }
                for expression, (runs, saved, compiled, given_up, workers) in rows[:most]
            ],
            "more_expressions": max(0, len(rows) - most),
        }


def _memory(ws: Any) -> dict[str, Any]:
    """Return the memory of a worker, bytes; None for unknown values."""
    metrics = ws.metrics
    metric = metrics.get(METRIC) or {}
    quota, shared = metric.get("quota"), metric.get("shared") or {}
    spilled = metrics.get("spilled_bytes") or {}
    process = metrics.get("memory", 0)
    published, mapped = shared.get("published", 0), shared.get("mapped", 0)
    held = max(0, ws.nbytes - spilled.get("memory", 0))
    return {
        "worker": ws.address,
        "name": str(ws.name),
        "host": ws.host,
        "status": ws.status.name,
        "limit": ws.memory_limit or None,
        "process": process,
        "private": max(0, held - published - mapped),
        "shared": published,
        "mapped": mapped,
        "other": max(0, process - held),
        "disk": spilled.get("disk", 0),
        "quota": quota["limit"] if quota else None,
        **{name: quota.get(name, 0) if quota else None for name in _OF_QUOTA},
        "last_seen": ws.last_seen,
    }


def _counts(metric: Mapping[str, Any]) -> dict[str, float]:
    return {
        f"{part}.{name}": value
        for part, own in metric.items()
        for name, value in own.items()
        if f"{part}.{name}" in _COUNTERS
    }


def _merge(merged: dict[tuple[str, str, str], list[float]], metric: Mapping[str, Any]) -> None:
    for text, dtypes, backend, *numbers in (metric.get("kernels") or {}).get("expressions", ()):
        row = merged.setdefault((text, dtypes, backend), [0.0] * 5)
        for i, number in enumerate(numbers):
            row[i] += number
        row[4] += 1


def _share(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and value is not False else None
