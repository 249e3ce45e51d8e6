"""Adds a worker's counters to its heartbeats, about one kilobyte at most.

The scheduler's observer reads them from ``WorkerState.metrics["marsched"]``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

#: Name among the metrics of a worker.
METRIC = "marsched"
#: Expressions that are sent, and characters of each.
_EXPRESSIONS, _CHARACTERS = 4, 48

_FIGURES: dict[str, tuple[str, ...]] = {
    "quota": ("limit", "used", "promised", "queued", "deferrals", "forced", "evictions"),
    "store": ("memory", "spilled", "disk"),
    "shared": (
        "published",
        "mapped",
        "by_handle",
        "bytes_by_handle",
        "by_comm",
        "bytes_by_comm",
        "adopted",
    ),
    "interrupts": ("interrupted",),
    "kernels": ("saved", "runs", "fused", "compiled"),
    "runs": ("runs", "tasks"),
}


def figures(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the counters in a worker's report, by part that is on."""
    found: dict[str, Any] = {}
    for part, names in _FIGURES.items():
        own = report.get(part)
        if own:
            found[part] = {name: _rounded(own[name]) for name in names if name in own}
    if "kernels" in found:
        found["kernels"]["expressions"] = [
            [
                _truncate(one["text"]),
                _truncate(one["dtypes"]),
                one["backend"],
                one["runs"],
                _rounded(one["saved"]),
                _rounded(one.get("compiled", 0.0)),
                len(one["given_up"]),
            ]
            for one in report["kernels"]["expressions"][:_EXPRESSIONS]
        ]
    return found


def _rounded(number: float) -> float:
    return round(number, 6) if isinstance(number, float) else int(number)


def _truncate(text: str) -> str:
    return text if len(text) <= _CHARACTERS else text[: _CHARACTERS - 1] + "…"


class HeartbeatMetrics:
    """Adds a metric to the heartbeats of a worker; `caught` is called with exceptions."""

    def __init__(
        self,
        worker: Any,
        report: Callable[[], Mapping[str, Any]],
        caught: Callable[[str, Exception], None],
    ) -> None:
        self._worker = worker
        self._report = report
        self._caught = caught

    def install(self) -> None:
        """Add the metric."""
        self._worker.metrics[METRIC] = self._measure

    def uninstall(self) -> None:
        """Remove the metric, unless another registration has replaced it. Idempotent."""
        if getattr(self._worker.metrics.get(METRIC), "__self__", None) is self:
            del self._worker.metrics[METRIC]

    def _measure(self, worker: Any) -> dict[str, Any]:
        try:
            return figures(self._report())
        except Exception as error:
            self._caught("heartbeat", error)
            return {}
