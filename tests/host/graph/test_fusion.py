"""Fusion of graphs on their way into a real scheduler: which tasks are joined."""

import asyncio
import logging
import operator
import os
import subprocess
import sys
import traceback
from functools import partial
from typing import Any
from unittest.mock import patch

import dask
import dask.array as da
import numpy as np
import pytest
from dask._task_spec import Alias, DataNode, Task, TaskRef
from dask.delayed import delayed
from distributed import (
    Event,
    Future,
    Scheduler,
    wait,
    worker_client,
)
from distributed.utils_test import async_poll_for, captured_logger, gen_cluster

from dask_marsched.core import memoization
from dask_marsched.host.batched_messages import FINISHED
from dask_marsched.host.graph.fused_tasks import join
from dask_marsched.host.graph.task_order import order_and_free
from dask_marsched.policies.fusion import group_heads
from dask_marsched.scheduler_plugin import MarsSchedulerPlugin
from dask_marsched.simulation import simulate
from tests.harness import check, planned_cluster, report_of

subgraphs = partial(planned_cluster, plugin=lambda: MarsSchedulerPlugin(fusion="subgraphs"))
chains = partial(planned_cluster, plugin=lambda: MarsSchedulerPlugin(fusion="chains"))


def fusion(s: Scheduler) -> tuple[int, int]:
    found = report_of(s)["fusion"]
    return found["operands"], found["into"]


# ---- Fusing tasks ------------------------------------------------------------------------------


def add(x: int, y: int) -> int:
    return x + y


def inc(x: int) -> int:
    return x + 1


def test_a_fused_task_computes_the_same() -> None:
    dsk = {
        "b": Task("b", add, TaskRef("a"), 1),
        "c": Task("c", add, TaskRef("b"), TaskRef("x")),
        "d": Task("d", add, TaskRef("c"), TaskRef("b")),
    }
    node = join("d", ["b", "c"], dsk)
    assert node.key == "d"
    assert node.dependencies == {"a", "x"}
    assert node({"a": 1, "x": 10}) == 14


def test_aliases_are_replaced_by_their_targets() -> None:
    dsk = {"b": Task("b", add, TaskRef("a"), 1), "c": Alias("c", "b"), "d": Alias("d", "c")}
    node = join("d", ["b", "c"], dsk)
    assert isinstance(node, Task)
    assert (node.key, node.func) == ("d", add)
    assert node({"a": 1}) == 2
    alias = join("c", ["b"], {"b": Alias("b", "a"), "c": Alias("c", "b")})
    assert (type(alias), alias.key, alias.dependencies) == (Alias, "c", {"a"})
    data = join("c", ["b"], {"b": DataNode("b", 3), "c": Alias("c", "b")})
    assert (data.key, data()) == ("c", 3)


def test_a_task_with_inputs_is_no_data_producer() -> None:
    source = Task("a", add, 1, 2, _data_producer=True)
    dsk = {
        "a": source,
        "b": Task("b", add, TaskRef("a"), 1),
        "c": Task("c", add, TaskRef("a"), TaskRef("x")),
    }
    assert join("b", ["a"], dsk).data_producer
    assert not join("c", ["a"], dsk).data_producer
    assert join("d", ["a"], {"a": source, "d": Alias("d", "a")}).data_producer


# ---- Tasks that are not fused ------------------------------------------------------------------


def submits(x: int) -> Any:
    with worker_client() as client:
        return client.submit(inc, x).result()


def waits(x: int) -> int:
    Event("go").wait()
    return x


# ---- On a scheduler ----------------------------------------------------------------------------


@chains()
async def test_the_published_example(c, s, *workers):
    """`c = (a + b).sum()`: the two sources stay; dask.array has already fused the rest."""
    x, y = (delayed(inc)(i, dask_key_name=f"rand-{i}") for i in range(2))
    total = delayed(sum)(
        [delayed(operator.add)(x, y, dask_key_name="add-0")], dask_key_name="sum-0"
    )
    graphs = []
    stock = s._create_taskstate_from_graph
    s._create_taskstate_from_graph = lambda **kwargs: (
        graphs.append(set(kwargs["dsk"])),
        stock(**kwargs),
    )[1]
    assert await c.compute(total) == 3
    s._create_taskstate_from_graph = stock
    assert graphs == [{"rand-0", "rand-1", "sum-0"}]
    assert fusion(s) == (2, 1)


@pytest.mark.extended
@subgraphs()
async def test_results_are_the_same_and_tasks_are_fewer(c, s, *workers):
    x = da.random.default_rng(2).random((120, 120), chunks=10)
    program = (da.map_overlap(np.cumsum, x, depth=1, axis=0, dtype=x.dtype) - x.mean(axis=0)).std()
    with dask.config.set(scheduler="sync"):
        expected = program.compute()
    assert await c.compute(program) == expected
    joined, into = fusion(s)
    assert joined > 5 * into > 0


@subgraphs()
async def test_persisted_results_are_not_recomputed(c, s, *workers):
    x = da.ones((40, 40), chunks=10).map_blocks(np.sin)
    kept = c.persist(x)
    await wait(kept)
    # The whole graph is sent again; the scheduler has these results.
    total = c.compute((x + 1).sum())
    assert await total == pytest.approx(1600 * (1 + np.sin(1)))
    assert all(s.tasks[future.key].state == "memory" for future in c.futures_of(kept))


@subgraphs()
async def test_tasks_under_way_are_not_run_twice(c, s, *workers):
    gate = delayed(waits)(1, dask_key_name="gate")
    shared = [delayed(add)(gate, i, dask_key_name=f"shared-{i}") for i in range(4)]
    first = c.compute(shared)
    await async_poll_for(lambda: len(s.tasks) == 5, 5)
    total = c.compute(delayed(sum)(shared, dask_key_name="sum-0"))
    await async_poll_for(lambda: "sum-0" in s.tasks, 5)
    assert {ts.key for ts in s.tasks["sum-0"].dependencies} == {f"shared-{i}" for i in range(4)}
    await Event("go").set()
    assert await total == 10
    assert await asyncio.gather(*first) == [1, 2, 3, 4]


@planned_cluster([("127.0.0.1", 1)] * 2)
async def test_chunks_that_are_being_persisted_have_their_sizes(c, s, *workers):
    counts = []
    for seed in range(2):
        kept = c.persist(da.random.default_rng(seed).random((2400, 2400), chunks=(200, 200)))
        if seed:
            await wait(kept)
        await c.compute(kept.std())
        counts.append(fusion(s))
    assert counts[1] == (2 * counts[0][0], 2 * counts[0][1])


def line(length: int) -> list[Any]:
    """Return a chain of tasks, each of which adds one."""
    tasks = [delayed(inc)(0, dask_key_name="step-0")]
    for i in range(1, length):
        tasks.append(delayed(inc)(tasks[-1], dask_key_name=f"step-{i}"))
    return tasks


@subgraphs()
async def test_a_fused_result_can_be_requested_later(c, s, *workers):
    steps = line(4)
    first = c.compute(steps[-1])
    assert await first == 4
    assert set(s.tasks) == {"step-3"}
    with captured_logger("distributed.scheduler", level=logging.WARNING) as log:
        again = c.compute([*steps, delayed(inc)(steps[-1], dask_key_name="step-4")])
        assert await asyncio.gather(*again) == [1, 2, 3, 4, 5]
    assert log.getvalue() == ""
    assert not s.tasks["step-3"].dependencies
    s.validate_state()


@subgraphs()
async def test_what_only_a_fused_task_would_have_read_is_left_out(c, s, *workers):
    """The first form of a fused task stays, and may read less than the one sent now.

    Dask itself names tasks alike that it has fused in one way or another.
    """
    read = delayed(inc)(0, dask_key_name="read-0")
    other = delayed(inc)(read, dask_key_name="other-0")
    steps = line(2)
    first = c.compute([read, other, steps[-1]])
    assert await asyncio.gather(*first) == [1, 2, 2]
    now = {
        "new": Task("new", inc, 0),
        "other-0": Task("other-0", inc, TaskRef("new")),
        "step-1": Task("step-1", inc, TaskRef("other-0")),
        "last": Task("last", inc, TaskRef("step-1")),
    }
    assert await c.get(now, "last", sync=False) == 3
    assert "new" not in s.tasks
    s.validate_state()


@subgraphs()
async def test_a_lost_fused_result_is_recomputed(c, s, *workers):
    steps = line(4)
    first = c.compute(steps[-1])
    assert await first == 4
    holder = next(w for w in workers if "step-3" in w.data)
    await holder.close()
    assert await c.compute(delayed(inc)(steps[-1])) == 5
    assert await first == 4


@subgraphs()
async def test_fusion_is_undone_for_tasks_of_a_newer_graph(c, s, *workers):
    """Another graph may arrive between fusion in the thread and creation of the tasks."""
    steps = line(3)
    stock = s._create_taskstate_from_graph
    seen: list[set[Any]] = []

    def late(**kwargs: Any) -> Any:
        seen.append(set(kwargs["dsk"]))
        s.new_task("step-1", None, "released")
        s.client_desires_keys(keys={"step-1"}, client=c.id)
        return stock(**kwargs)

    s._create_taskstate_from_graph = late
    total = c.compute(steps[-1])
    assert await total == 3
    s._create_taskstate_from_graph = stock
    assert seen == [{"step-2"}]
    assert {ts.key for ts in s.tasks["step-2"].dependencies} == {"step-1"}
    assert fusion(s) == (0, 0)
    s.client_releases_keys(keys={"step-1"}, client=c.id)


def fail(x: int) -> int:
    raise ZeroDivisionError(f"of {x}")


@subgraphs()
async def test_an_error_names_the_function_that_failed(c, s, *workers):
    future = c.compute(delayed(inc)(delayed(fail)(line(2)[-1]), dask_key_name="last-0"))
    with pytest.raises(ZeroDivisionError, match="of 2"):
        await future
    assert "in fail" in "".join(traceback.format_tb(await future._traceback()))
    assert set(s.tasks) == {"last-0"}
    assert s.tasks["last-0"].prefix.name == "last"


@subgraphs()
async def test_annotations_keep_tasks_apart(c, s, a, b, d):
    with dask.annotate(workers=[a.address]):
        x = delayed(inc)(1, dask_key_name="x-0")
    with dask.annotate(workers=[b.address], retries=2):
        y = delayed(inc)(x, dask_key_name="y-0")
    z = delayed(inc)(delayed(inc)(y, dask_key_name="z-0"), dask_key_name="z-1")
    future = c.compute(z, optimize_graph=False)
    assert await future == 5
    assert fusion(s) == (2, 1)
    assert a.state.tasks.keys() | b.state.tasks.keys() >= {"x-0", "y-0"}


@pytest.mark.extended
@subgraphs()
async def test_global_annotations_are_kept(c, s, a, b, d):
    future = c.compute(line(3)[-1], workers=[a.address], priority=7)
    assert await future == 3
    ts = s.tasks["step-2"]
    assert ts.worker_restrictions == {a.address}
    assert ts.annotations == {"workers": [a.address], "priority": 7}
    assert ts.priority[0] == -7
    assert fusion(s) == (3, 1)


CALLS: list[str] = []


def load() -> int:
    CALLS.append("load")
    return 1


def use(x: int) -> int:
    CALLS.append("use")
    assert CALLS.count("use") == 3
    return x


@pytest.mark.parametrize("annotated", [False, True])
@subgraphs()
async def test_a_retry_repeats_the_function_that_failed_only(c, s, a, b, d, annotated):
    CALLS.clear()
    with dask.annotate(**({"retries": 2} if annotated else {})):
        used = delayed(use)(delayed(load)())
    with captured_logger("distributed.worker"):
        assert await c.compute(used, optimize_graph=False, retries=None if annotated else 2) == 1
    assert sorted(CALLS) == ["load", *["use"] * 3]
    assert fusion(s) == (0, 0)
    assert await c.compute((da.ones(4, chunks=2) + 1).sum(), retries=2) == 8
    assert fusion(s)[1] > 0, "functions of arrays may run again"


class Counter:
    def __init__(self, start: int) -> None:
        self.n = start

    def increment(self) -> int:
        self.n += 1
        return self.n


@subgraphs()
async def test_actors_stay_as_they_are(c, s, *workers):
    counter = await c.submit(Counter, c.submit(inc, 1), actor=True)
    assert await counter.increment() == 3
    assert fusion(s) == (0, 0)


@subgraphs()
async def test_shuffles_stay_as_they_are(c, s, *workers):
    pytest.importorskip("pyarrow")
    x = da.arange(1600, chunks=100).reshape((40, 40)).rechunk((10, 40))
    turned = x.rechunk((40, 10), method="p2p")
    total = await c.compute((turned + 1).sum(axis=0))
    np.testing.assert_array_equal(total, (np.arange(1600).reshape((40, 40)) + 1).sum(axis=0))


@subgraphs()
async def test_futures_of_map_are_not_fused(c, s, *workers):
    futures = c.map(inc, range(50))
    assert await c.gather(futures) == list(range(1, 51))
    assert len(s.tasks) == 50
    assert fusion(s) == (0, 0)


@subgraphs()
async def test_tasks_that_submit_tasks(c, s, *workers):
    total = delayed(sum)([delayed(submits)(i) for i in range(3)])
    assert await c.compute(total) == 6


@subgraphs()
async def test_two_graphs_at_once(c, s, *workers):
    x = da.random.default_rng(4).random((60, 60), chunks=10)
    futures = c.compute([x.sum(), (x + 1).sum(), (x * 2).mean(axis=0).sum()], sync=False)
    more = [c.compute(x.std()), c.compute(x.sum())]
    with dask.config.set(scheduler="sync"):
        expected = dask.compute(x.sum(), (x + 1).sum(), (x * 2).mean(axis=0).sum(), x.std())
    assert await c.gather(futures) == list(expected[:3])
    assert await c.gather(more) == [expected[3], expected[0]]


@subgraphs()
async def test_a_graph_that_comes_again_is_remembered(c, s, *workers):
    with (
        patch("dask_marsched.policies.grouping.group_heads", wraps=group_heads) as joins,
        patch("dask_marsched.host.graph.task_order.order_and_free", wraps=order_and_free) as orders,
    ):
        memoization.forget()
        for seed in range(3):
            x = da.random.default_rng(seed).random((60, 60), chunks=10)
            y = x + x.T
            with dask.config.set(scheduler="sync"):
                expected = (y - y.mean(axis=0)).std().compute()
            assert await c.compute((y - y.mean(axis=0)).std()) == expected
    assert (joins.call_count, orders.call_count) == (1, 1)


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_unregistering_ends_it(c, s, a, b):
    handlers = dict(s.stream_handlers)
    await c.register_plugin(MarsSchedulerPlugin(fusion="subgraphs"))
    assert s.stream_handlers != handlers
    x = da.ones((40, 40), chunks=10)
    kept = c.compute(x.sum())
    assert await kept == 1600
    check(s)
    plugin: Any = s.plugins["marsched"]
    before = plugin.report()["fusion"]
    await c.unregister_scheduler_plugin("marsched")
    assert s.stream_handlers.pop(FINISHED)  # such messages may still be on their way
    assert s.stream_handlers == handlers
    assert await c.compute((x + 1).sum()) == 3200
    assert plugin.report()["fusion"] == before


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_other_plugins_may_wrap_the_handler_too(c, s, a, b):
    seen = []

    def watching(handler: Any, name: str) -> Any:
        async def watch(**message: Any) -> None:
            seen.append(name)
            await handler(**message)

        return watch

    s.stream_handlers["update-graph"] = watching(s.stream_handlers["update-graph"], "before")
    await c.register_plugin(MarsSchedulerPlugin(fusion="chains"))
    s.stream_handlers["update-graph"] = last = watching(s.stream_handlers["update-graph"], "after")
    assert await c.compute(line(3)[-1]) == 3
    assert fusion(s) == (3, 1)
    await c.unregister_scheduler_plugin("marsched")
    assert s.stream_handlers["update-graph"] is last
    assert await c.compute(line(4)[-1]) == 4
    assert seen == ["after", "before"] * 2


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_a_failure_leaves_the_graph_as_it_is(c, s, a, b, monkeypatch):
    def broken(*args: Any) -> Any:
        raise ArithmeticError("no")

    monkeypatch.setattr("dask_marsched.host.graph.fusion.find_groups", broken)
    await c.register_plugin(MarsSchedulerPlugin(fusion="subgraphs"))
    with captured_logger("dask_marsched") as log:
        assert await c.compute(da.ones((40, 40), chunks=10).sum()) == 1600
    assert "ArithmeticError" in log.getvalue()
    report = report_of(s)
    assert report["exceptions"] == {"fuse": 1}
    assert report["fusion"] == {"mode": "subgraphs", "operands": 0, "into": 0}
    assert isinstance(c.submit(inc, 1), Future)


# ---- Repeatability ------------------------------------------------------------------------------

GROUPS = """
import dask.array as da
from dask_marsched.host.scheduler import materialization as materialize
from dask_marsched.simulation import simulate as _
import importlib
module = importlib.import_module("dask_marsched.simulation.simulate")
def show(*args, fuse=materialize.fuse_for):
    found = fuse(*args)
    print(sorted(map(str, found[1].items())), sorted(map(str, found[2].items())))
    return found
module.fuse_for = show
a, b = (da.random.default_rng(seed).random((600, 600), chunks=100) for seed in (0, 1))
padded = da.overlap.overlap(a[1:, 1:] - b[:-1, :-1], depth=1, boundary="periodic")
module.simulate(padded.sum(axis=0), isolated=False, timeline=False)
"""


@pytest.mark.extended
def test_fusion_does_not_depend_on_the_hash_seed() -> None:
    first, second = (
        subprocess.run(
            [sys.executable, "-c", GROUPS],
            env=os.environ | {"PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            check=True,
            timeout=60,
        ).stdout
        for seed in "12"
    )
    assert len(first) > 1000
    assert first == second


def test_products_that_form_tiles_are_not_fused() -> None:
    x = da.random.default_rng(0).random((8 * 512, 8 * 512), chunks=512)
    report = simulate(da.cov(x), workers=8, isolated=False, timeline=False)
    # Fusing the products on the diagonal of the 64 x 8 would break up the grid.
    assert "sum + sum-partial" not in report.plugin["fusion"]["expressions"]


class Failing:
    def __sizeof__(self):
        raise ZeroDivisionError


@subgraphs()
async def test_annotations_and_sizes_that_fail_for_other_tasks(c, s, *workers):
    external = c.submit(inc, 1, key="external")
    last = delayed(inc)(external, dask_key_name="n-0")
    for number in (1, 2):
        last = delayed(inc)(last, dask_key_name=f"n-{number}")
    priorities = {f"n-{number}": 1 for number in range(3)}
    with dask.annotate(priority=lambda key: priorities[key]):
        assert await c.compute(last, optimize_graph=False) == 5
    held = delayed(Failing(), pure=False)
    assert await c.compute(delayed(lambda x: 1)(delayed(lambda x: x)(held))) == 1
