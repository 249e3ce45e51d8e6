"""What a worker tells of itself with each heartbeat: a few counters, about one kilobyte at most.

The scheduler's observer reads them from ``WorkerState.metrics["marsched"]``. Nothing is sent where
all parts are off.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

#: Name among the metrics of a worker.
METRIC = "marsched"
#: Expressions that are told of, and characters of each.
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
}


def figures(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the counters in a worker's report, of the parts that are on.

    Parameters
    ----------
    report
        See `dask_marsched.worker_plugin.MarsWorkerPlugin.report`.
    """
    told: dict[str, Any] = {}
    for part, names in _FIGURES.items():
        own = report.get(part)
        if own:
            told[part] = {name: _plain(own[name]) for name in names if name in own}
    if "kernels" in told:
        told["kernels"]["expressions"] = [
            [
                _shortened(one["text"]),
                _shortened(one["dtypes"]),
                one["backend"],
                one["runs"],
                _plain(one["saved"]),
                _plain(one.get("compiled", 0.0)),
                len(one["given_up"]),
            ]
            for one in report["kernels"]["expressions"][:_EXPRESSIONS]
        ]
    return told


def _plain(number: float) -> float:
    return round(number, 6) if isinstance(number, float) else int(number)


def _shortened(text: str) -> str:
    return text if len(text) <= _CHARACTERS else text[: _CHARACTERS - 1] + "…"


class HeartbeatMetrics:
    """Has a worker tell its figures with each heartbeat.

    Parameters
    ----------
    worker
        A `distributed.Worker`.
    report
        Returns what is to be told.
    caught
        Told of an exception: (where, exception). Nothing is told then.
    """

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
        """Begin."""
        self._worker.metrics[METRIC] = self._tell

    def uninstall(self) -> None:
        """End. Idempotent."""
        # Not what another registration has put there since.
        if getattr(self._worker.metrics.get(METRIC), "__self__", None) is self:
            del self._worker.metrics[METRIC]

    def _tell(self, worker: Any) -> dict[str, Any]:
        try:
            return figures(self._report())
        except Exception as error:
            self._caught("heartbeat", error)
            return {}
