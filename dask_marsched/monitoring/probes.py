"""Small functions that other processes run to say what they are.

They are made inside of functions: cloudpickle sends such functions by value, so that they run
also where dask_marsched is not installed. For the same reason they import what they need
themselves, and answer in plain types only.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any


def scheduler_probe() -> Callable[..., dict[str, Any]]:
    """Return the function to run on the scheduler.

    It answers with ``installed`` and ``version`` of dask_marsched, ``report`` (of the plugin, or
    None where it is not registered), ``preload_failure`` and ``workers`` (address -> versions as
    told when the worker registered).
    """
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
        # What was never imported cannot be registered.
        loaded = sys.modules.get("dask_marsched.scheduler_plugin")
        if loaded is None:
            return answer
        reports = [
            plugin.report()
            for plugin in list(dask_scheduler.plugins.values())
            if isinstance(plugin, loaded.MarsSchedulerPlugin)
        ]
        # Registered twice under different names: the one that is at work answers.
        reports.sort(key=lambda report: not report["active"])
        answer["report"] = reports[0] if reports else None
        return answer

    return probe


def worker_probe() -> Callable[..., dict[str, Any]]:
    """Return the function to run on a worker.

    It answers with ``installed`` and ``version`` of dask_marsched, and the ``report`` of its
    plugin there, or None.
    """
    package = package_probe()

    def probe(dask_worker: Any = None) -> dict[str, Any]:
        report = getattr(dask_worker.plugins.get("marsched"), "report", None)
        return {**package(), "report": None if report is None else report()}

    return probe


def heartbeat_probe() -> Callable[..., Awaitable[None]]:
    """Return the function that has a worker tell its figures now, instead of a little later."""

    async def probe(dask_worker: Any = None) -> None:
        await dask_worker.heartbeat()

    return probe


def package_probe() -> Callable[[], dict[str, Any]]:
    """Return the part of these functions that tells of the package.

    It answers with ``installed`` (whether dask_marsched is there) and its ``version`` (None also
    where that cannot be told). It does not import the package: that would hold up the event loop
    of the process for about a second.
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
        # A directory without `__init__.py` that happens to have this name is not the package.
        if spec is None or spec.origin is None:
            return {"installed": False, "version": None}
        try:
            version = importlib.metadata.version("dask-marsched")
        except importlib.metadata.PackageNotFoundError:
            version = None
        return {"installed": True, "version": version}

    return probe


def processor_probe() -> Callable[[], dict[int, tuple[float, float]]]:
    """Return the function that tells of all threads of a process how long they ran and waited.

    It answers, by thread identifier, with the seconds that the thread was on a core, and those
    that it was ready to run and waited for one; with nothing where the system does not tell.
    """

    def probe() -> dict[int, tuple[float, float]]:
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
        return times

    return probe


def load_probe() -> Callable[..., dict[str, Any]]:
    """Return the function that tells what a worker has had to do so far.

    It answers with ``threads`` as `processor_probe`, the identifier of the ``loop``'s, the ``pid``
    of the process, how many transfers to other workers it has ``sent``, and their ``nbytes``.
    """
    threads = processor_probe()

    def probe(dask_worker: Any = None) -> dict[str, Any]:
        import os
        import threading

        return {
            "threads": threads(),
            "pid": os.getpid(),
            "loop": threading.get_ident(),  # this runs there
            "sent": getattr(dask_worker, "transfer_outgoing_count_total", 0),
            "nbytes": getattr(dask_worker, "transfer_outgoing_bytes_total", 0),
        }

    return probe
