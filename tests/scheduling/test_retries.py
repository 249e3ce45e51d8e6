"""Infrastructure errors on a real cluster: operands are retried, on another worker first."""

import asyncio
from typing import ClassVar

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Event, Worker, get_worker, wait
from distributed.utils_test import async_poll_for, inc

import dask_marsched
from dask_marsched.config import Settings
from dask_marsched.scheduler_plugin import MarsSchedulerPlugin
from tests.harness import THREE_WORKERS, planned_cluster, plugin_of, report_of


def retrying_cluster(nthreads=THREE_WORKERS, most=2, delay=0.01):
    """Make a cluster that tries again after so many seconds."""

    def tune(plugin):
        plugin._engine.retries.rule.delay = delay

    plugin = MarsSchedulerPlugin(settings=Settings(retries=most))
    return planned_cluster(nthreads, plugin=lambda: plugin, tune=tune)


def run_where(log, fails_on, error):
    """Note the worker in a list of the test's process, and fail on some."""
    from tests.scheduling import test_retries

    address = get_worker().address
    test_retries.LOGS[log].append(address)
    if fails_on is None or address in fails_on:
        raise error
    return address


LOGS: dict[str, list[str]] = {}


def submit(c, *args, **kwargs):
    """Submit what its user calls harmless to run again."""
    with dask.annotate(pure=True):
        return c.submit(*args, **kwargs)


@pytest.fixture
def log(request):
    LOGS[request.node.name] = []
    yield request.node.name
    del LOGS[request.node.name]


@retrying_cluster()
async def test_an_operand_is_retried_on_another_worker(c, s, a, b, d, log):
    broken = [a.address, b.address]
    first = submit(c, run_where, log, broken, ConnectionResetError(104, "reset"), key="x")
    after = c.submit(len, first)
    assert await after == len(d.address)
    assert len(set(LOGS[log])) == len(LOGS[log])  # never twice on the same one
    assert LOGS[log][-1] == d.address
    assert report_of(s)["retried"] == len(LOGS[log]) - 1
    assert not plugin_of(s)._engine.retries._failed_on


@retrying_cluster()
async def test_after_the_last_retry_it_fails_with_its_cause(c, s, a, b, d, log):
    first = submit(c, run_where, log, None, OSError(5, "the disk is gone"), key="x")
    after = c.submit(inc, first)
    with pytest.raises(OSError, match="the disk is gone"):
        await after
    assert len(set(LOGS[log])) == len(LOGS[log]) == 3
    assert s.tasks[after.key].exception_blame is s.tasks["x"]


@pytest.mark.parametrize("error", [ZeroDivisionError("x"), FileNotFoundError(2, "x")])
@retrying_cluster()
async def test_errors_of_the_program_are_not_retried(c, s, a, b, d, log, error):
    with pytest.raises(type(error)):
        await submit(c, run_where, log, None, error)
    assert len(LOGS[log]) == 1


def write_and_fail(path):
    with open(path, "a") as file:
        file.write("x")
    raise OSError(5, "the disk is gone")


@retrying_cluster()
async def test_tasks_that_may_write_are_not_retried(c, s, a, b, d, tmp_path):
    written = tmp_path / "written"
    with pytest.raises(OSError, match="the disk is gone"):
        await c.submit(write_and_fail, written, pure=True)
    assert written.read_text() == "x"
    target = Unsteady(on="__setitem__")
    with pytest.raises(ConnectionResetError):
        await c.compute(da.ones(4, chunks=2).store(target, lock=False, compute=False))
    # the first failure is told while the other chunk may still be on its way
    await async_poll_for(lambda: Unsteady.failures == {"__setitem__": 2}, 5)


class Unsteady:
    """A store that fails the first two times."""

    shape, dtype, ndim = (4,), np.dtype(float), 1
    failures: ClassVar[dict[str, int]] = {}

    def __init__(self, on):
        self.on = on
        self.failures.clear()

    def _fail(self, what):
        if what == self.on and self.failures.get(what, 0) < 2:
            self.failures[what] = self.failures.get(what, 0) + 1
            raise ConnectionResetError(104, "reset")

    def __getitem__(self, index):
        self._fail("__getitem__")
        return np.ones(4)[index]

    def __setitem__(self, index, value):
        self._fail("__setitem__")


@retrying_cluster()
async def test_tasks_that_read_a_store_are_retried(c, s, a, b, d):
    x = da.from_array(Unsteady(on="__getitem__"), chunks=2, name="x", meta=np.empty(0))
    assert await c.compute((x + 1).sum()) == 8
    assert report_of(s)["retried"] == 2


@retrying_cluster(most=1)
async def test_the_users_own_retries_come_after(c, s, a, b, d, log):
    with pytest.raises(OSError, match="no luck"):
        await submit(c, run_where, log, None, OSError(5, "no luck"), retries=2)
    assert len(LOGS[log]) == 4


@retrying_cluster(delay=3600)
async def test_cancellation_while_waiting_for_a_retry(c, s, a, b, d, log):
    future = submit(c, run_where, log, None, OSError(5, "x"), key="x")
    await async_poll_for(lambda: report_of(s)["retried"], 5)
    await c.cancel(future)
    await async_poll_for(lambda: "x" not in s.tasks, 5)
    assert await c.submit(inc, 1) == 2


@retrying_cluster(delay=3600)
async def test_death_of_the_worker_while_waiting_for_a_retry(c, s, a, b, d, log):
    future = submit(c, run_where, log, [a.address], OSError(5, "x"), workers=[a.address], key="x",
                      allow_other_workers=True)  # fmt: skip
    await async_poll_for(lambda: report_of(s)["retried"], 5)
    await a.close()
    assert await future in (b.address, d.address)


@retrying_cluster(delay=3600)
async def test_waiting_operands_are_retried_when_the_plugin_is_removed(c, s, a, b, d, log):
    broken = [a.address, b.address, d.address]
    future = submit(c, run_where, log, broken, OSError(5, "x"), key="x", retries=0)
    await async_poll_for(lambda: report_of(s)["retried"], 5)
    await c.unregister_scheduler_plugin("marsched")
    await asyncio.wait_for(wait(future), 5)
    assert future.status == "error"
    assert len(LOGS[log]) == 2
    await c.register_plugin(MarsSchedulerPlugin())


@retrying_cluster(delay=3600)
async def test_so_are_those_that_have_the_key_of_a_cancelled_one(c, s, a, b, d, log):
    first = submit(c, run_where, log, None, OSError(5, "x"), key="x")
    await async_poll_for(lambda: report_of(s)["retried"] == 1, 5)
    await c.cancel(first)
    await async_poll_for(lambda: "x" not in s.tasks, 5)
    second = submit(c, run_where, log, None, OSError(5, "x"), key="x", retries=0)
    await async_poll_for(lambda: report_of(s)["retried"] == 2, 5)
    await c.unregister_scheduler_plugin("marsched")
    await asyncio.wait_for(wait(second), 5)
    await c.register_plugin(MarsSchedulerPlugin())


@retrying_cluster()
async def test_a_retry_by_the_user_restarts_the_count(c, s, a, b, d, log):
    future = submit(c, run_where, log, None, OSError(5, "x"), key="x")
    await wait(future)
    await c.retry(future)
    await async_poll_for(lambda: len(LOGS[log]) == 6, 5)
    await wait(future)
    assert len(LOGS[log]) == 6
    assert future.status == "error"


def hold(gate):
    Event(gate).wait()
    raise OSError(5, "x")


def fail_some(x, fails):
    if fails:
        raise OSError(5, "x")
    return x


@retrying_cluster([("127.0.0.1", 1)], delay=3600)
async def test_waiting_for_a_retry_takes_no_slot(c, s, a):
    with dask.annotate(pure=True):
        futures = c.map(fail_some, range(40), [i % 10 == 0 for i in range(40)])
    good = [future for i, future in enumerate(futures) if i % 10]
    await asyncio.wait_for(wait(good), 20)
    assert report_of(s)["retried"] == 4
    found = await dask_marsched.operands(c)
    assert found.counts["ready"] == 4
    assert found.counts["running"] == 0


@retrying_cluster([("127.0.0.1", 1)], delay=3600)
async def test_operands_waiting_for_a_retry_are_not_stolen(c, s, a):
    """Its worker would answer that it has failed, which Dask takes for a broken worker."""
    inputs = c.map(inc, range(10))
    await wait(inputs)
    await wait([submit(c, fail_some, x, False) for x in inputs])
    s.task_prefixes["fail_some"].duration_average = 1.0  # worth stealing
    waiting = [submit(c, fail_some, x, True) for x in inputs]
    await async_poll_for(lambda: report_of(s)["retried"] == 10, 5)
    stealing = s.extensions["stealing"]
    assert not any(stealing.key_stealable.get(s.tasks[future.key]) for future in waiting)
    async with Worker(s.address, nthreads=1) as b:
        stealing.balance()
        await stealing.stop()
        assert await c.submit(inc, 1, workers=[a.address]) == 2
        assert {*s.workers} == {a.address, b.address}
    assert all(inp.status == "finished" for inp in inputs)


@retrying_cluster([("127.0.0.1", 1)] * 2, delay=3600)
async def test_what_fails_while_it_is_being_stolen(c, s, a, b):
    future = submit(c, hold, "go", workers=[a.address], allow_other_workers=True, key="x")
    await async_poll_for(lambda: a.state.executing, 5)
    a.stream_handlers["steal-request"] = lambda **_: None  # its answer is given below
    stealing, ts = s.extensions["stealing"], s.tasks["x"]
    stealing.move_task_request(ts, s.workers[a.address], s.workers[b.address])
    stimulus_id = stealing.in_flight[ts]["stimulus_id"]
    await Event("go").set()
    await async_poll_for(lambda: report_of(s)["retried"], 5)
    stealing.move_task_confirm(key="x", state="error", stimulus_id=stimulus_id)
    assert len(s.workers) == 2
    assert future.status == "pending"
