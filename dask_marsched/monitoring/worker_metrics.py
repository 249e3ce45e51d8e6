"""What workers told with their last heartbeats: memory, what they share, fused kernels.

Reads public attributes of the scheduler's `WorkerState`, and asks no worker anything.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Mapping
from typing import Any

import dask.config

from dask_marsched.core.series import Series
from dask_marsched.worker.heartbeat_metrics import METRIC

#: Bytes of the whole cluster that are followed over time.
TOTALS = ("limit", "quota", "used", "promised", "queued", "process", "private", "shared", "disk")
#: Samples that are kept of each worker while somebody looks.
_RECENT = 120
#: The shares of its memory limit at which a worker reacts, in Dask's configuration.
_THRESHOLDS = ("target", "spill", "pause", "terminate")
#: What a worker tells that only grows.
_COUNTERS = frozenset(
    {
        "quota.deferrals",
        "quota.forced",
        "quota.evictions",
        "shared.by_handle",
        "shared.bytes_by_handle",
        "shared.by_comm",
        "shared.bytes_by_comm",
        "shared.adopted",
        "interrupts.interrupted",
        "kernels.saved",
        "kernels.runs",
        "kernels.fused",
        "kernels.compiled",
    }
)
#: Expressions that are remembered of workers that are gone.
_MOST_GONE = 200


class ObservedWorkers:
    """Follows the workers of one scheduler.

    Parameters
    ----------
    scheduler
        A `distributed.Scheduler`, read only.
    """

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._totals = Series(TOTALS)
        self._recent: dict[str, deque[tuple[float, float, float, float]]] = {}
        self._last: dict[str, Mapping[str, Any]] = {}
        self._gone: dict[str, float] = defaultdict(float)
        self._gone_expressions: dict[tuple[str, str, str], list[float]] = {}

    def due(self, now: float) -> bool:
        """Whether it is time to sample."""
        return self._totals.due(now)

    def sample(self, now: float, closely: bool) -> None:
        """Take note of how things stand; of each worker only where somebody looks closely."""
        sums = dict.fromkeys(TOTALS, 0.0)
        for ws in self._scheduler.workers.values():
            told = ws.metrics.get(METRIC)
            if told:
                self._last[ws.address] = told
            row = _memory(ws)
            for name in TOTALS:
                sums[name] += row[name] or 0
            if closely:
                recent = self._recent.setdefault(ws.address, deque(maxlen=_RECENT))
                recent.append((now, row["used"] or 0, row["process"], row["disk"]))
        if self._totals.due(now):
            self._totals.add(now, [sums[name] for name in TOTALS])
        if not closely:
            self._recent.clear()

    def left(self, address: str) -> None:
        """Take note that a worker is gone: its counts are kept, in sum."""
        self._recent.pop(address, None)
        told = self._last.pop(address, None)
        if told:
            for name, value in _counts(told).items():
                self._gone[name] += value
            if len(self._gone_expressions) < _MOST_GONE:
                _merge(self._gone_expressions, told)

    def clear_history(self) -> None:
        """Forget what was over time, not the counts."""
        self._totals = Series(TOTALS)
        self._recent.clear()

    # -- telling ---------------------------------------------------------------------------

    def memory(self, most: int) -> dict[str, Any]:
        """Return what `Observer.memory` does."""
        rows = [_memory(ws) for ws in self._scheduler.workers.values()]
        shown = rows
        if len(rows) > most:
            shown = sorted(rows, key=lambda row: -(row["process"] / (row["limit"] or 1e18)))[:most]
        # Names are numbers, mostly: 2 comes before 10.
        shown.sort(key=lambda row: (len(row["name"]), row["name"]))
        quota = any(row["quota"] is not None for row in rows)
        for row in shown:
            recent = self._recent.get(row["worker"], ())
            row["recent"] = {
                name: [step[i] for step in recent]
                for i, name in enumerate(("time", "used", "process", "disk"))
            }
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
        """Return the sums of what workers count, of those that are gone too."""
        sums = defaultdict(float, self._gone)
        for ws in self._scheduler.workers.values():
            told = ws.metrics.get(METRIC)
            if told:
                for name, value in _counts(told).items():
                    sums[name] += value
        return sums

    def parts(self) -> Counter[str]:
        """Return how many workers tell of each part."""
        return Counter(
            part for ws in self._scheduler.workers.values() for part in ws.metrics.get(METRIC) or ()
        )

    def kernels(self, most: int) -> dict[str, Any]:
        """Return what `Observer.kernels` does."""
        merged = {key: list(row) for key, row in self._gone_expressions.items()}
        for ws in self._scheduler.workers.values():
            _merge(merged, ws.metrics.get(METRIC) or {})
        rows = sorted(merged.items(), key=lambda item: -abs(item[1][1]))
        sums = self.counts()
        return {
            "workers_on": self.parts()["kernels"],
            "workers": len(self._scheduler.workers),
            "saved": sums["kernels.saved"],
            "runs": int(sums["kernels.runs"]),
            "fused": int(sums["kernels.fused"]),
            "compiled": sums["kernels.compiled"],
            "expressions": [
                {
                    "text": text,
                    "dtypes": dtypes,
                    "backend": backend,
                    "runs": int(runs),
                    "saved": saved,
                    "compiled": compiled,
                    "given_up": int(given_up),
                    "workers": int(workers),
                }
                for (text, dtypes, backend), (runs, saved, compiled, given_up, workers) in rows[
                    :most
                ]
            ],
            "more_expressions": max(0, len(rows) - most),
        }


def _memory(ws: Any) -> dict[str, Any]:
    """Return the memory of a worker, bytes; None for what is not known of it."""
    metrics = ws.metrics
    told = metrics.get(METRIC) or {}
    quota, shared = told.get("quota"), told.get("shared") or {}
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
        "used": quota["used"] if quota else None,
        "promised": quota["promised"] if quota else None,
        "queued": quota["queued"] if quota else None,
        "deferrals": quota.get("deferrals", 0) if quota else None,
        "forced": quota.get("forced", 0) if quota else None,
        "evictions": quota.get("evictions", 0) if quota else None,
        "last_seen": ws.last_seen,
    }


def _counts(told: Mapping[str, Any]) -> dict[str, float]:
    return {
        f"{part}.{name}": value
        for part, own in told.items()
        for name, value in own.items()
        if f"{part}.{name}" in _COUNTERS
    }


def _merge(merged: dict[tuple[str, str, str], list[float]], told: Mapping[str, Any]) -> None:
    for text, dtypes, backend, *numbers in (told.get("kernels") or {}).get("expressions", ()):
        row = merged.setdefault((text, dtypes, backend), [0.0] * 5)
        for i, number in enumerate(numbers):
            row[i] += number
        row[4] += 1


def _share(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and value is not False else None
