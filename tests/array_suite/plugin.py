"""pytest plugin: sends what dask.array's tests compute through a client, with or without ours.

Loaded by ``pytest -p tests.array_suite.plugin --cluster stock|marsched --outcomes FILE``. The
tests ask for the synchronous or the threaded scheduler by name; both names are given to a client
of a small cluster in this process instead, whose scheduler and workers check their invariants.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import dask
import dask.base
import pytest
from distributed import Client, LocalCluster
from distributed.worker import thread_state

from dask_marsched.scheduler_plugin import MarsSchedulerPlugin

_CONFIG = {
    "distributed.scheduler.validate": True,
    "distributed.worker.validate": True,
    "distributed.worker.profile.enabled": False,
    "distributed.admin.system-monitor.gil.enabled": False,
    "temporary-directory": tempfile.gettempdir(),
}
_running = pytest.StashKey[ExitStack]()
_scheduler = pytest.StashKey[Any]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("array suite")
    group.addoption("--cluster", choices=("stock", "marsched"), required=True)
    group.addoption("--outcomes", type=Path, required=True, help="JSON lines: test, outcome")
    group.addoption("--per-file", type=int, default=0, help="so many tests of each file; 0: all")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        return  # the process that only hands out the tests
    stack = config.stash[_running] = ExitStack()
    stack.enter_context(dask.config.set(_CONFIG))
    cluster = LocalCluster(
        n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None
    )
    client = Client(stack.enter_context(cluster))
    stack.enter_context(client)
    config.stash[_scheduler] = cluster.scheduler
    if config.getoption("cluster") == "marsched":
        client.register_plugin(MarsSchedulerPlugin())
    stack.enter_context(_everything_through(client))


def pytest_unconfigure(config: pytest.Config) -> None:
    stack = config.stash.get(_running, None)
    if stack is None:
        return
    plugin = config.stash[_scheduler].plugins.get("marsched")
    report = plugin.report() if plugin is not None else None
    stack.close()
    _append(config, {"report": report})


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    most = config.getoption("per_file")
    if not most:
        return
    by_file = defaultdict(list)
    for item in items:
        by_file[item.path].append(item)
    chosen = [
        own[i * len(own) // min(most, len(own))]
        for own in by_file.values()
        for i in range(min(most, len(own)))
    ]
    items[:] = chosen


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Any:
    report = yield
    # A test has passed if its call did; what failed in its set-up or after it counts too.
    if report.when == "call" or not report.passed:
        reason = str(report.longrepr)[-2000:] if report.failed else ""
        outcome = "xfailed" if hasattr(report, "wasxfail") else report.outcome
        _append(item.config, {"test": item.nodeid, "outcome": outcome, "reason": reason})
    return report


def _append(config: pytest.Config, record: dict[str, Any]) -> None:
    # One short write in append mode: several processes may share the file.
    file = os.open(config.getoption("outcomes"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, (json.dumps(record) + "\n").encode())
    finally:
        os.close(file)


class _everything_through:
    """Give the names of dask's local schedulers to a client."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._names = dask.base.named_schedulers
        self._before = dict(self._names)

    def __enter__(self) -> None:
        for name, stock in self._before.items():
            self._names[name] = self._getter(stock)

    def __exit__(self, *_: Any) -> None:
        self._names.update(self._before)

    def _getter(self, stock: Any) -> Any:
        def get(graph: Any, keys: Any, **kwargs: Any) -> Any:
            if hasattr(thread_state, "key"):
                # Inside of a task: it would wait for a thread that it occupies itself.
                return stock(graph, keys, **kwargs)
            kwargs.pop("num_workers", None)
            kwargs.pop("pool", None)
            return self._client.get(graph, keys, **kwargs)

        return get
