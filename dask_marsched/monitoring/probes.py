"""Makes small functions that report on the process that runs them.

They are nested functions with their own imports and return plain types, so that cloudpickle sends
them by value, also to processes without dask_marsched.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any


def scheduler_probe() -> Callable[..., dict[str, Any]]:
    """Return a function for the scheduler that reports the package, the plugin and the workers."""
    package = package_probe()

    def probe(dask_scheduler: Any = None) -> dict[str, Any]:
        import sys

        answer: dict[str, Any] = {
            **package(),
            "report": None,
            "preload_failure": None,
            "workers": {
                address: dict((worker.versions or {}).get("packages", {}))
                for address, worker in dask_scheduler.workers.items()
            },
        }
        preload = sys.modules.get("dask_marsched.preload")
        if preload is not None:
            answer["preload_failure"] = preload.failures.get(dask_scheduler)
        loaded = sys.modules.get("dask_marsched.scheduler_plugin")
        if loaded is None:
            return answer
        reports = [
            plugin.report()
            for plugin in list(dask_scheduler.plugins.values())
            if isinstance(plugin, loaded.MarsSchedulerPlugin)
        ]
        # If two are registered under different names, an active one comes first.
        reports.sort(key=lambda report: not report["active"])
        answer["report"] = reports[0] if reports else None
        return answer

    return probe


def worker_probe() -> Callable[..., dict[str, Any]]:
    """Return a function for workers that reports the package and the plugin on the worker."""
    package = package_probe()

    def probe(dask_worker: Any = None) -> dict[str, Any]:
        report = getattr(dask_worker.plugins.get("marsched"), "report", None)
        return {**package(), "report": None if report is None else report()}

    return probe


def heartbeat_probe() -> Callable[..., Awaitable[None]]:
    """Return a function that makes a worker send a heartbeat now."""

    async def probe(dask_worker: Any = None) -> None:
        await dask_worker.heartbeat()

    return probe


def package_probe() -> Callable[[], dict[str, Any]]:
    """Return a function that looks for the package and its version (None if unknown).

    It does not import the package, which would block the event loop for about a second.
    """

    def probe() -> dict[str, Any]:
        import importlib.metadata
        import importlib.util
        import sys

        loaded = sys.modules.get("dask_marsched")
        if loaded is not None:
            return {"installed": True, "version": loaded.__version__}
        try:
            spec = importlib.util.find_spec("dask_marsched")
        except (ImportError, ValueError):
            spec = None
        # A directory of this name without `__init__.py` is not the package.
        if spec is None or spec.origin is None:
            return {"installed": False, "version": None}
        try:
            version = importlib.metadata.version("dask-marsched")
        except importlib.metadata.PackageNotFoundError:
            version = None
        return {"installed": True, "version": version}

    return probe


def load_probe() -> Callable[..., dict[str, Any]]:
    """Return a function that measures the processor time and transfers of a worker so far.

    ``threads`` has, by thread identifier, the seconds on a core, and waiting for one; it is empty
    where that is unsupported. ``sent`` also counts the results that this worker has received by
    handle; the other end does not count those.
    """

    def probe(dask_worker: Any = None) -> dict[str, Any]:
        import os
        import threading

        times = {}
        for thread in threading.enumerate():
            try:
                with open(f"/proc/self/task/{thread.native_id}/schedstat") as file:
                    ran, waited, _ = map(int, file.read().split())
            except (OSError, ValueError):  # not Linux, or the thread has just ended
                continue
            if thread.ident is not None:
                times[thread.ident] = (ran / 1e9, waited / 1e9)
        plugin: Any = getattr(dask_worker, "plugins", {}).get("marsched")
        shared = (plugin.report().get("shared") or {}) if hasattr(plugin, "report") else {}
        sent = getattr(dask_worker, "transfer_outgoing_count_total", 0)
        return {
            "threads": times,
            "pid": os.getpid(),
            "loop": threading.get_ident(),  # this runs there
            "sent": sent + shared.get("by_handle", 0),
            "nbytes": getattr(dask_worker, "transfer_outgoing_bytes_total", 0),
        }

    return probe
