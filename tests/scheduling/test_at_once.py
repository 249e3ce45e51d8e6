"""A task that came alone is sent at once where a thread is free and nothing else waits."""

from __future__ import annotations

from distributed import Lock
from distributed.utils_test import async_poll_for, gen_cluster, inc

from dask_marsched.scheduler_plugin import MarsSchedulerPlugin
from tests.harness import check


def _locked(i, lock):
    with lock:
        return i


@gen_cluster(client=True, nthreads=[("", 1)] * 2)
async def test_sent_at_once_or_withheld(c, s, a, b):
    await c.register_plugin(MarsSchedulerPlugin())
    first = [c.submit(inc, i) for i in range(8)]
    await c.gather(first)  # the group is larger than the cluster from now on
    before = check(s)
    assert await c.submit(inc, 100) == 101
    after = check(s)
    assert after["withheld"] == before["withheld"]
    assert after["operands_placed"] == before["operands_placed"] + 1

    async with (lock := Lock("gate")):
        futures = [c.submit(_locked, i, lock) for i in range(9)]
        await async_poll_for(lambda: len(s.queued) > 2, 5)
        assert {len(ws.processing) for ws in s.workers.values()} <= {1, 2}
    assert await c.gather(futures) == list(range(9))
    assert sum(check(s)["withheld"].values()) > sum(after["withheld"].values())
