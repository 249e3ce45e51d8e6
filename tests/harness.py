"""Clusters with the plugin, in this process, whose scheduler and workers check their invariants."""

import contextlib
import functools
import logging
import traceback
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from distributed import Scheduler
from distributed.utils_test import gen_cluster

from dask_marsched.scheduler_plugin import MarsSchedulerPlugin

#: Seconds after which a test has hung.
TIMEOUT = 30

THREE_WORKERS = [("127.0.0.1", 1)] * 3


class _OurFailures(logging.Handler):
    """Collects what was logged with a traceback that leads through our package.

    distributed only logs what a plugin's hooks raise, so that nothing else would show it.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            text = "".join(traceback.format_exception(record.exc_info[1]))
            if "dask_marsched/" in text:
                self.found.append(text)


@contextlib.contextmanager
def our_failures() -> Iterator[list[str]]:
    """Collect the tracebacks through our package that are logged meanwhile."""
    handler = _OurFailures()
    loggers = [logging.getLogger(name) for name in ("distributed", "dask_marsched")]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        yield handler.found
    finally:
        for logger in loggers:
            logger.removeHandler(handler)


def plugin_of(scheduler: Scheduler) -> MarsSchedulerPlugin:
    plugin = scheduler.plugins["marsched"]
    assert isinstance(plugin, MarsSchedulerPlugin)
    return plugin


def report_of(scheduler: Scheduler) -> dict[str, Any]:
    return plugin_of(scheduler).report()


def check(scheduler: Scheduler) -> dict[str, Any]:
    """Assert that the plugin is at work and well; return its report."""
    report = report_of(scheduler)
    assert report["active"], report["reason"]
    assert report["exceptions"] == {}, report["last_exception"]
    scheduler.validate_state()
    return report


def planned_cluster(
    nthreads: list[Any] = THREE_WORKERS,
    *,
    plugin: Callable[[], MarsSchedulerPlugin] = MarsSchedulerPlugin,
    tune: Callable[[MarsSchedulerPlugin], None] = lambda plugin: None,
    timeout: float = TIMEOUT,
    **options: Any,
) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., None]]:
    """Run a test ``async def test(c, s, *workers)`` on a cluster with the plugin.

    `tune` changes what there is no option for, once the plugin has started. At the test's end the
    plugin must be in force, no hook of ours may have raised, and the scheduler's state must be
    valid.
    """

    def decorate(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        @gen_cluster(client=True, nthreads=nthreads, timeout=timeout, **options)
        @functools.wraps(test)
        async def on_cluster(c: Any, s: Scheduler, *args: Any, **kwargs: Any) -> None:
            with our_failures() as failures:
                await c.register_plugin(plugin())
                tune(plugin_of(s))
                await test(c, s, *args, **kwargs)
                check(s)
            assert not failures, failures[0]

        return on_cluster

    return decorate
