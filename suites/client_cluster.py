"""pytest plugin: sends what dask.array's tests compute through a client, with or without ours.

Loaded by ``pytest -p suites.client_cluster --cluster stock|marsched --outcomes FILE``. The
tests ask for the synchronous or the threaded scheduler by name; both names are given to a client
of a small cluster instead, whose scheduler and workers check their invariants.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import dask
import dask.base
import pytest
from distributed import Client, LocalCluster, Scheduler
from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.worker import thread_state

from dask_marsched.scheduler_plugin import MarsSchedulerPlugin

_CONFIG = {
    "distributed.scheduler.validate": True,
    "distributed.worker.validate": True,
    "distributed.worker.profile.enabled": False,
    "distributed.admin.system-monitor.gil.enabled": False,
    "temporary-directory": tempfile.gettempdir(),
}


class Emptied(SchedulerPlugin):
    """Tells when a scheduler has forgotten its last task."""

    name = "emptied"

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.event = threading.Event()

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        """Tell when the last task is forgotten."""
        # The task is taken out of `tasks` only after the plugins have heard of it.
        if finish == "forgotten" and len(self._scheduler.tasks) == 1:
            self._scheduler.loop.add_callback(self.event.set)


class ClusterOfTests:
    """A small cluster in place of dask's local schedulers.

    Local schedulers forget everything after each call, and many tests count on it: they give the
    same names to arrays of different contents. So nothing of a computation may be left before
    the next one begins.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._ours = config.getoption("cluster") == "marsched"
        self._processes = config.getoption("workers") == "processes"
        self._outcomes = config.getoption("outcomes")
        self._stock = dict(dask.base.named_schedulers)
        self._start()

    def _start(self) -> None:
        with dask.config.set(_CONFIG):
            self._cluster = LocalCluster(
                n_workers=2,
                threads_per_worker=1,
                processes=self._processes,
                dashboard_address=None,
            )
            self._client = Client(self._cluster)
        scheduler: Any = self._cluster.scheduler
        assert scheduler is not None
        self._scheduler = scheduler
        self._emptied = Emptied(self._scheduler)
        self._scheduler.add_plugin(self._emptied)
        if self._ours:
            self._client.register_plugin(MarsSchedulerPlugin())
        for name, stock in self._stock.items():
            dask.base.named_schedulers[name] = self._getter(stock)

    def stop(self) -> None:
        """Close the cluster, and leave what the plugin reports among the outcomes."""
        dask.base.named_schedulers.update(self._stock)
        if self._ours:
            report = self._scheduler.plugins["marsched"].report()
            self.note({"report": report})
        self._client.close()
        self._cluster.close()

    def clean(self) -> None:
        """Have nothing left of earlier tests."""
        if self._settled(0.2):
            return
        # What a failed test had is held by its traceback, or by a cycle.
        for name in ("last_value", "last_traceback", "last_type", "last_exc"):
            if hasattr(sys, name):
                setattr(sys, name, None)
        gc.collect()
        if not self._settled(0.5):
            self.stop()
            self._start()

    def note(self, record: dict[str, Any]) -> None:
        """Append to the file of outcomes: one short write, as several processes may share it."""
        file = os.open(self._outcomes, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(file, (json.dumps(record) + "\n").encode())
        finally:
            os.close(file)

    def _settled(self, seconds: float) -> bool:
        """Wait until no task is left; False if some are after so many seconds."""
        deadline = time.monotonic() + seconds
        while True:
            self._emptied.event.clear()
            if not self._left():
                return True
            if not self._emptied.event.wait(deadline - time.monotonic()):
                return not self._left()

    def _left(self) -> bool:
        return bool(self._scheduler.tasks or self._client.futures)

    def _getter(self, stock: Any) -> Any:
        def get(graph: Any, keys: Any, **kwargs: Any) -> Any:
            if hasattr(thread_state, "key"):
                # Inside of a task: it would wait for a thread that it occupies itself.
                return stock(graph, keys, **kwargs)
            kwargs.pop("num_workers", None)
            kwargs.pop("pool", None)
            try:
                return self._client.get(graph, keys, **kwargs)
            finally:
                self._settled(0.2)

        return get


_cluster = pytest.StashKey[ClusterOfTests]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what chooses the cluster."""
    group = parser.getgroup("array suite")
    group.addoption("--cluster", choices=("stock", "marsched"), required=True)
    group.addoption("--workers", choices=("threads", "processes"), default="threads")
    group.addoption("--outcomes", type=Path, required=True, help="JSON lines: test, outcome")
    group.addoption("--per-file", type=int, default=0, help="so many tests of each file; 0: all")


def pytest_configure(config: pytest.Config) -> None:
    """Start the cluster."""
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        return  # the process that only hands out the tests
    config.stash[_cluster] = ClusterOfTests(config)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the cluster."""
    if _cluster in config.stash:
        config.stash[_cluster].stop()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep evenly spread tests of each file."""
    most = config.getoption("per_file")
    if not most:
        return
    by_file = defaultdict(list)
    for item in items:
        by_file[item.path].append(item)
    items[:] = [
        own[i * len(own) // min(most, len(own))]
        for own in by_file.values()
        for i in range(min(most, len(own)))
    ]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Have nothing left of earlier tests."""
    item.config.stash[_cluster].clean()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Any:
    """Note how a test ended."""
    report = yield
    # A test has passed if its call did; what failed in its set-up or after it counts too.
    if report.when == "call" or not report.passed:
        reason = str(report.longrepr)[-2000:] if report.failed else ""
        outcome = "xfailed" if hasattr(report, "wasxfail") else report.outcome
        note = {"test": item.nodeid, "outcome": outcome, "reason": reason}
        item.config.stash[_cluster].note(note)
    return report
