"""submit, map, delayed, restrictions, priorities, retries, actors, nested clients."""

import asyncio
import operator

import dask
import dask.array as da
import pytest
from dask.delayed import delayed
from distributed import (
    Client,
    Event,
    Queue,
    Semaphore,
    Status,
    Variable,
    fire_and_forget,
    get_client,
    get_worker,
    rejoin,
    secede,
    wait,
    worker_client,
)
from distributed.utils_test import async_poll_for, div, inc

from tests.harness import planned_cluster, plugin_of, report_of


def where() -> str:
    return get_worker().address


def where_with(*inputs: object) -> str:
    return get_worker().address


def note(queue: str, mark: object, *inputs: object) -> object:
    Queue(queue).put(mark)
    return mark


def fail_twice(name: str, i: int) -> int:
    tries = int(Variable(f"{name}-{i}").get(timeout=0.01)) if Event(f"{name}-{i}").is_set() else 0
    Event(f"{name}-{i}").set()
    Variable(f"{name}-{i}").set(tries + 1)
    if tries < 2:
        raise RuntimeError(f"try {tries + 1}")
    return i


def pass_gate(gate: str, *inputs: object) -> int:
    Event(gate).wait()
    return len(inputs)


@planned_cluster()
async def test_submit_and_map(c, s, *workers):
    squares = c.map(lambda x: x * x, range(50))
    total = c.submit(sum, squares)
    assert await total == sum(x * x for x in range(50))
    assert sum(report_of(s)["withheld"].values()) == 50


@planned_cluster()
async def test_map_over_futures_as_they_come(c, s, *workers):
    layer = c.map(inc, range(20))
    for _ in range(4):
        layer = c.map(inc, layer)
    assert await c.gather(layer) == [x + 5 for x in range(20)]


@planned_cluster()
async def test_delayed(c, s, *workers):
    leaves = [delayed(inc)(i) for i in range(16)]
    while len(leaves) > 1:
        leaves = [
            delayed(operator.add)(a, b) for a, b in zip(leaves[::2], leaves[1::2], strict=True)
        ]
    assert await c.compute(leaves[0]) == sum(range(1, 17))
    report = report_of(s)
    assert report["operands_planned"] == 31
    assert report["operands_placed"] == 31


@planned_cluster()
async def test_single_task_and_task_without_work(c, s, *workers):
    assert await c.submit(inc, 1) == 2
    assert await c.compute(delayed(5)) == 5
    assert await c.gather([]) == []


# ---- The user's word wins --------------------------------------------------------------------


@planned_cluster()
async def test_restriction_to_a_worker(c, s, a, b, d):
    futures = c.map(lambda i: where(), range(20), workers=[b.address], pure=False)
    assert set(await c.gather(futures)) == {b.address}
    assert report_of(s)["left_to_dask"]["restricted to workers, hosts or resources"] == 20


@planned_cluster()
async def test_restriction_that_allows_other_workers(c, s, a, b, d):
    gone = "tcp://127.0.0.1:9"
    futures = c.map(inc, range(10), workers=[gone], allow_other_workers=True)
    assert await c.gather(futures) == list(range(1, 11))


@planned_cluster()
async def test_restricted_part_of_a_graph(c, s, a, b, d):
    with dask.annotate(workers=[a.address]):
        source = [delayed(inc)(i) for i in range(6)]
    places = [delayed(where_with)(x, dask_key_name=f"w{i}") for i, x in enumerate(source)]
    with dask.annotate(workers=[b.address]):
        last = delayed(where_with)(*places)
    with dask.config.set({"optimization.fuse.active": False}):
        assert await c.compute(last, optimize_graph=False) == b.address


@planned_cluster()
async def test_restriction_to_a_host(c, s, a, b, d):
    future = c.submit(where, workers=["127.0.0.1"])
    assert await future in {a.address, b.address, d.address}


@planned_cluster(
    [
        ("127.0.0.1", 2, {"resources": {"GPU": 1}}),
        ("127.0.0.1", 2),
    ]
)
async def test_restriction_to_resources(c, s, a, b):
    places = c.map(lambda i: where(), range(8), resources={"GPU": 1}, pure=False)
    assert set(await c.gather(places)) == {a.address}
    with dask.annotate(resources={"GPU": 1}):
        x = da.ones((8, 8), chunks=2).map_blocks(lambda block: block + 1)
    total = x.sum()
    assert await c.compute(total, optimize_graph=False) == 128


@planned_cluster([("127.0.0.1", 1)])
async def test_priority_of_submit(c, s, a):
    gate = Event("gate")
    blocker = c.submit(pass_gate, "gate")
    await async_poll_for(lambda: a.state.executing_count == 1, 5)
    order = await Queue("order")
    low = c.map(lambda i: note("order", "low"), range(3), priority=-10, pure=False)
    plain = c.map(lambda i: note("order", "plain"), range(3), pure=False)
    high = c.map(lambda i: note("order", "high"), range(3), priority=10, pure=False)
    await async_poll_for(lambda: len(s.tasks) == 10, 5)
    await gate.set()
    await wait([blocker, *low, *plain, *high])
    # what was sent ahead before the more urgent came is allowed one place
    marks = [await order.get() for _ in range(9)]
    ranked = [m for m in marks if m != "low"]
    assert ranked == ["high"] * 3 + ["plain"] * 3
    assert marks.index("low") in (0, 6)


@planned_cluster([("127.0.0.1", 1)], config={"distributed.worker.memory.pause": False})
async def test_more_urgent_tasks_go_before_a_single_one_when_a_worker_resumes(c, s, a):
    order = await Queue("order")
    a.status = Status.paused
    await async_poll_for(lambda: s.workers[a.address].status == Status.paused, 5)
    single = c.submit(note, "order", "single", pure=False)
    high = c.map(lambda i: note("order", "high"), range(3), priority=1, pure=False)
    await async_poll_for(lambda: len(s.tasks) == 4, 5)
    a.status = Status.running
    await wait([single, *high])
    assert [await order.get() for _ in range(4)] == ["high"] * 3 + ["single"]


@planned_cluster([("127.0.0.1", 1)])
async def test_priority_annotation_in_a_graph(c, s, a):
    gate = Event("gate")
    blocker = c.submit(pass_gate, "gate")
    await async_poll_for(lambda: a.state.executing_count == 1, 5)
    order = await Queue("order")
    with dask.annotate(priority=-5):
        low = [delayed(note)("order", f"low-{i}") for i in range(4)]
    with dask.annotate(priority=5):
        high = [delayed(note)("order", f"high-{i}") for i in range(4)]
    future = c.compute(delayed(list)(low + high), optimize_graph=False)
    await async_poll_for(lambda: len(s.tasks) >= 9, 5)
    await gate.set()
    await wait([blocker, future])
    marks = [(await order.get())[:3] for _ in range(8)]
    assert marks == ["hig"] * 4 + ["low"] * 4
    assert report_of(s)["graphs_planned"] == 1


@planned_cluster()
async def test_retries(c, s, *workers):
    futures = c.map(fail_twice, ["a"] * 12, range(12), retries=2)
    assert await c.gather(futures) == list(range(12))
    with dask.annotate(retries=2):
        leaves = [delayed(fail_twice)("b", i) for i in range(8)]
    assert await c.compute(delayed(sum)(leaves), optimize_graph=False) == sum(range(8))
    with pytest.raises(RuntimeError, match="try 1"):
        await c.submit(fail_twice, "c", 99)


@planned_cluster()
async def test_task_that_errs_and_is_retried_by_the_client(c, s, *workers):
    divisor = Variable("divisor")
    await divisor.set(0)

    def divide(i: int) -> float:
        return i / (Variable("divisor").get() if i == 4 else 1)

    # One of them only: several make distributed's own validation fail, also without us.
    parts = c.map(divide, range(10), key=[f"part-{i}" for i in range(10)])
    total = c.submit(sum, parts)
    with pytest.raises(ZeroDivisionError):
        await total
    await divisor.set(1)
    await c.retry([total])
    assert await total == 45


@planned_cluster()
async def test_error_in_the_middle_of_a_graph(c, s, *workers):
    x = da.ones((40, 40), chunks=10)
    bad = x.map_blocks(_fail_at, dtype=float)
    with pytest.raises(RuntimeError, match="block 2, 2"):
        await c.compute(bad.sum())
    with pytest.raises(ZeroDivisionError):
        await c.submit(div, 1, 0)
    assert await c.compute(x.sum()) == 1600


def _fail_at(block, block_id=None):
    if block_id == (2, 2):
        raise RuntimeError("block 2, 2")
    return block


# ---- Actors, tasks that start tasks ----------------------------------------------------------


class Counter:
    n = 0

    def increment(self, by: int = 1) -> int:
        self.n += by
        return self.n


@planned_cluster()
async def test_actors(c, s, *workers):
    counters = await asyncio.gather(
        *[c.submit(Counter, actor=True, key=f"counter-{i}") for i in range(8)]
    )
    for counter in counters:
        assert await counter.increment(2) == 2
    assert report_of(s)["left_to_dask"]["actor"] == 8


@planned_cluster()
async def test_actor_as_an_input(c, s, *workers):
    counter = c.submit(Counter, actor=True)
    futures = [c.submit(_increment, counter, i) for i in range(5)]
    assert sorted(await c.gather(futures)) == [1, 2, 3, 4, 5]


def _increment(actor: Counter, i: int) -> int:
    return actor.increment().result()


@planned_cluster()
async def test_worker_client(c, s, *workers):
    def nested(n: int) -> int:
        with worker_client() as client:
            return sum(client.gather(client.map(inc, range(n))))

    futures = c.map(nested, range(6))
    assert await c.gather(futures) == [sum(range(1, n + 1)) for n in range(6)]


@planned_cluster()
async def test_get_client_in_a_task(c, s, *workers):
    def nested(n: int) -> int:
        client = get_client()
        total = client.submit(sum, client.map(inc, range(n)))
        secede()  # to wait for them on a thread of the pool could be a deadlock
        value = total.result()
        rejoin()
        return value

    assert await c.gather(c.map(nested, range(1, 7))) == [sum(range(1, n + 1)) for n in range(1, 7)]


@planned_cluster()
async def test_collection_computed_in_a_task(c, s, *workers):
    def nested() -> float:
        with worker_client():
            return float((da.ones((20, 20), chunks=5) + 1).sum().compute())

    assert await c.submit(nested) == 800


# ---- Clients' other ways ---------------------------------------------------------------------


@planned_cluster()
async def test_fire_and_forget(c, s, *workers):
    queue = await Queue("fired")
    fire_and_forget(c.submit(note, "fired", 1))
    total = c.submit(note, "fired", 2, *c.map(inc, range(20)))
    fire_and_forget(total)
    del total
    assert sorted([await queue.get(timeout=10), await queue.get(timeout=10)]) == [1, 2]
    await async_poll_for(lambda: not s.tasks, 5)


@planned_cluster()
async def test_cancel(c, s, *workers):
    gate = Event("gate")
    roots = c.map(pass_gate, ["gate"] * 30, range(30), key=[f"r{i}" for i in range(30)])
    total = c.submit(len, roots)
    await async_poll_for(lambda: bool(s.queued), 5)
    await c.cancel([total, *roots])
    await gate.set()
    await async_poll_for(lambda: not s.tasks, 5)
    assert not s.queued
    assert not len(plugin_of(s).policies.withholding)
    assert await c.submit(sum, c.map(inc, range(10))) == 55


@planned_cluster()
async def test_releasing_part_of_what_is_withheld(c, s, *workers):
    gate = Event("gate")
    roots = c.map(pass_gate, ["gate"] * 30, range(30), key=[f"r{i}" for i in range(30)])
    await async_poll_for(lambda: bool(s.queued), 5)
    kept = roots[::3]
    del roots
    await async_poll_for(lambda: len(s.tasks) == 10, 5)
    await gate.set()
    assert await c.gather(kept) == [1] * 10


@planned_cluster()
async def test_published_dataset_and_other_client(c, s, *workers):
    x = c.persist(da.ones((20, 20), chunks=5) + 1)
    await c.publish_dataset(x=x)
    async with Client(s.address, asynchronous=True) as other:
        assert await other.compute((await other.get_dataset("x")).sum()) == 800
    await c.unpublish_dataset("x")


@planned_cluster()
async def test_client_that_goes_while_its_graph_runs(c, s, *workers):
    gate = Event("gate")
    async with Client(s.address, asynchronous=True) as other:
        theirs = other.map(pass_gate, ["gate"] * 20, range(20), key=[f"r{i}" for i in range(20)])
        await async_poll_for(lambda: bool(s.queued), 5)
        assert theirs
        mine = c.submit(sum, c.map(inc, range(10)))
        await async_poll_for(lambda: len(s.tasks) > 30, 5)
    await gate.set()
    assert await mine == 55


@planned_cluster()
async def test_futures_in_variables_and_queues(c, s, *workers):
    future = c.submit(sum, c.map(inc, range(10)))
    await Variable("total").set(future)
    queue = await Queue("futures")
    await queue.put(future)
    assert await (await queue.get()) == 55
    assert await (await Variable("total").get()) == 55


@planned_cluster()
async def test_semaphore(c, s, *workers):
    semaphore = await Semaphore(max_leases=1, name="one")

    def hold(i: int, semaphore: Semaphore) -> int:
        with semaphore:
            return i

    assert await c.gather(c.map(hold, range(9), semaphore=semaphore)) == list(range(9))
