"""Helpers for tests of the quota on real workers: plugins, tasks, and a limit set in the middle."""

import numpy as np
from distributed import Event
from distributed.utils_test import async_poll_for

from dask_marsched.config import Settings
from dask_marsched.scheduler_plugin import MarsSchedulerPlugin

MB = 10**6
ONE = [("127.0.0.1", 1)]
TWO_THREADS = [("127.0.0.1", 2)]
OFF = {
    "quota_enabled": False,
    "store_shared": False,
    "interrupt": False,
    "adopt": "off",
    "kernels_enabled": False,
}


def with_parts(**settings):
    """Return a plugin with these parts on the workers and no others."""
    return MarsSchedulerPlugin(settings=Settings(**{**OFF, **settings}))


def with_quota(**settings):
    return with_parts(quota_enabled=True, **settings)


def array(n, nbytes=10 * MB):
    return np.full(nbytes // 8, n, dtype="f8")


def gated(gate, *inputs, nbytes=10 * MB):
    """Return an array after an event; `Event` is waited for as a task of a user would."""
    Event(gate).wait()
    return array(len(inputs), nbytes)


def blocked_until(gate):
    Event(gate).wait()


def opener(gate, nbytes, *inputs):
    Event(gate).set()
    return array(0, nbytes)


def admission_of(worker):
    found = worker.plugins["marsched"]._parts["quota"]
    assert found is not None, worker.plugins["marsched"].report()
    return found


def counts_of(worker):
    report = admission_of(worker).report()
    assert report["exceptions"] == {}, report["last_exception"]
    return report


def assert_nothing_is_left(worker):
    admission = admission_of(worker)
    assert counts_of(worker)["promised"] == 0
    assert not any((admission.quota.grants, admission._kinds, admission._footprints.prefixes()))


def leave_free(worker, nbytes):
    """Set the limit so that this much of it is free now."""
    admission = admission_of(worker)
    admission._refresh(exact=True)
    admission.quota.limit = admission.quota.used + nbytes


async def known(c, function, *args, **kwargs):
    """Run a task and drop it, so that its kind is known."""
    future = c.submit(function, *args, pure=False, **kwargs)
    key = future.key
    await future
    del future
    await async_poll_for(lambda: key not in c.futures, 5)
