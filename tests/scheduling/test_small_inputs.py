"""Operands on small inputs run beside them: a message costs more than such an operand."""

from __future__ import annotations

from types import SimpleNamespace

import dask
import pytest
from distributed import Event, wait
from distributed.core import Status
from distributed.utils_test import async_poll_for, inc

from dask_marsched.host.scheduler.snapshot import awaited_holders
from dask_marsched.policies.unit_queues import UnitQueues
from dask_marsched.scheduler_plugin import MarsSchedulerPlugin
from tests.harness import check, planned_cluster


@planned_cluster([("127.0.0.1", 1)] * 2)
async def test_operands_run_beside_small_inputs_that_only_they_read(c, s, a, b):
    xs = [await c.scatter(i, workers=[w.address]) for i, w in enumerate([a, b] * 10)]
    ys = c.persist([dask.delayed(inc)(x) for x in xs])
    await wait(ys)
    beside = [y.key in w.data for y, w in zip(ys, [a, b] * 10, strict=True)]
    # near the end a worker with nothing to do takes what the other has left
    assert sum(beside) >= 16


def reads(x, i):
    Event("go").wait()
    return i


@planned_cluster([("127.0.0.1", 4)] * 2)
async def test_few_tasks_on_one_small_result_are_spread_over_workers_with_many_threads(c, s, a, b):
    x = dask.delayed(int)(0)
    ys = c.compute([dask.delayed(reads)(x, i) for i in range(4)])
    await async_poll_for(lambda: sum(len(w.state.executing) for w in (a, b)) == 4, 5)
    assert [len(w.state.executing) for w in (a, b)] == [2, 2]
    await Event("go").set()
    assert await c.gather(ys) == [0, 1, 2, 3]


@planned_cluster([("127.0.0.1", 4)] * 2)
async def test_short_tasks_on_one_small_result_stay_beside_it(c, s, a, b):
    assert await c.submit(inc, 0) == 1  # the duration of their kind is known from now on
    x = dask.delayed(int)(0)
    ys = c.persist([x, *[dask.delayed(inc)(x) for _ in range(3)]])
    await wait(ys)
    assert {sum(y.key in w.data for y in ys) for w in (a, b)} == {0, 4}


class Crossed(UnitQueues):
    """Offers each of two workers only tasks whose inputs the other one has."""

    workers = ()

    def planned(self, operand):
        return bool(operand.dependencies)

    def enqueue(self, operand, priority, home=None):
        (dts,) = operand.dependencies
        (holder,) = dts.who_has
        (other,) = (address for address in self.workers if address != holder.address)
        self.plan([operand], priority, other)
        super().enqueue(operand, priority, home)


@planned_cluster([("127.0.0.1", 1)] * 2, plugin=lambda: MarsSchedulerPlugin(withholding=Crossed()))
async def test_workers_do_not_wait_for_each_other_for_ever(c, s, a, b):
    Crossed.workers = a.address, b.address
    assert await c.submit(inc, 0) == 1  # its duration is known from now on
    xs = [await c.scatter(i, workers=[w.address]) for i, w in enumerate([a, b] * 2)]
    ys = c.compute([dask.delayed(inc)(x) for x in xs])
    assert await c.gather(ys) == [1, 2, 3, 4]
    assert sum(check(s)["withheld"].values()) == 4


def opens_or_waits(x, i):
    if i == 0:
        Event("go").wait()
    elif i == 9:
        Event("go").set()
    return i


@planned_cluster([("127.0.0.1", 1)] * 2)
async def test_nobody_waits_long_for_a_worker_with_an_unusually_long_task(c, s, a, b):
    """The first task waits for the last one, which waits for the worker of the first one."""
    await c.gather(c.map(opens_or_waits, range(10), range(10, 20)))  # the kind is short
    s.task_prefixes["opens_or_waits"].duration_average = 0.001  # on a slow machine, too
    x = await c.scatter(0, workers=[a.address])
    assert await c.gather(c.map(opens_or_waits, [x] * 10, range(10), pure=False)) == [*range(10)]


@planned_cluster([("127.0.0.1", 1)] * 2)
async def test_tasks_on_a_small_input_spread_over_workers_that_get_withheld_ones(c, s, a, b):
    x = await c.scatter(0, workers=[a.address])
    blocked = c.map(reads, range(20), range(20), pure=False)
    await async_poll_for(lambda: s.queued, 5)
    ys = [c.submit(inc, x, pure=False) for _ in range(4)]
    tasks = s.tasks
    await async_poll_for(lambda: all(y.key in tasks and tasks[y.key].processing_on for y in ys), 5)
    assert {tasks[y.key].processing_on.address for y in ys} == {a.address, b.address}
    await Event("go").set()
    await wait([*blocked, *ys])


PREFIX = SimpleNamespace(duration_average=0.001)


def holder(occupancy=0.0, status=Status.running):
    return SimpleNamespace(status=status, nthreads=1, occupancy=occupancy)


class Read(SimpleNamespace):
    __hash__ = object.__hash__
    __eq__ = object.__eq__


def operand(*who, prefix=PREFIX):
    read = Read(who_has={Read(**vars(w)) for w in who}, get_nbytes=lambda: 1000)
    return Read(prefix=prefix, dependencies=[read])


@pytest.mark.parametrize(
    ("task", "withheld", "waits"),
    [
        (operand(holder()), 100, True),
        (operand(holder()), 101, False),
        (operand(holder(), prefix=SimpleNamespace(duration_average=-1)), 1, False),
        (operand(holder(status=Status.paused)), 1, False),
        (operand(holder(occupancy=0.05)), 50, True),
        (operand(holder(occupancy=0.05)), 51, False),
        (Read(prefix=PREFIX, dependencies=[]), 1, False),
    ],
    ids=[
        "short",
        "long",
        "unknown",
        "paused",
        "behind another",
        "long behind another",
        "no inputs",
    ],
)
def test_short_operands_wait_for_the_worker_with_their_inputs(task, withheld, waits):
    assert awaited_holders(task, Read(), lambda _: withheld, {}) == (who(task) if waits else [])
    assert not awaited_holders(task, next(iter(who(task)), None), lambda _: withheld, {})


def who(task):
    return [ws for dts in task.dependencies for ws in dts.who_has]


def test_inputs_on_two_workers_bind_to_neither():
    apart = operand(holder())
    apart.dependencies += operand(holder()).dependencies
    assert not awaited_holders(apart, Read(), lambda _: 1, {})


def test_the_holders_of_an_input_are_looked_up_once_for_all_tasks_of_a_dispatch():
    """As many free workers as there are may have tasks on one input."""
    reads = []

    class Holder(SimpleNamespace):
        __hash__ = object.__hash__
        occupancy = property(lambda self: reads.append(self) or 0.0)

    task = operand()
    one = Holder(status=Status.running, nthreads=1)
    task.dependencies[0].who_has = {one}
    tasks = [task, Read(prefix=PREFIX, dependencies=[*task.dependencies])]
    known = {}
    assert [awaited_holders(ts, Read(), lambda _: 1, known) for ts in tasks] == [[one], [one]]
    assert len(reads) == 1
    assert awaited_holders(task, Read(), lambda _: 101, known) == []


def test_inputs_that_are_much_smaller_bind_to_no_worker():
    """As labels beside the samples of an iterative fit, wherever they are."""
    task = operand(holder())
    large = who(task)
    here = Read()
    small = Read(who_has={here}, get_nbytes=lambda: 124)
    task.dependencies.append(small)
    assert awaited_holders(task, here, lambda _: 1, {}) == large
    small.get_nbytes = lambda: 125
    assert not awaited_holders(task, here, lambda _: 1, {})
