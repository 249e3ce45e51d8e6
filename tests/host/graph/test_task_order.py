"""The order of tasks on a real scheduler is Dask's, and the same in every process."""

import copy
import functools
import operator
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.order
import pytest
from dask._task_spec import Alias, DataNode, GraphNode, Task, TaskRef
from dask.typing import Key
from dask.utils import key_split
from distributed import Scheduler
from distributed.utils_test import captured_logger, gen_cluster

from dask_marsched.host.graph.task_order import order_for, repeatable_order
from dask_marsched.scheduler_plugin import MarsSchedulerPlugin
from tests.harness import planned_cluster, report_of

PLUGIN = "marsched"
TWO_WORKERS = [("127.0.0.1", 1)] * 2


def product() -> Any:
    """Return a product of matrices by `da.random`, whose names differ in every process."""
    rng = da.random.default_rng()
    left, right = (rng.random((60, 60), chunks=10) for _ in range(2))
    return (left @ right).sum()


def graph_of(collection: Any) -> dict[Key, GraphNode]:
    found: dict[Key, GraphNode] = collection.__dask_graph__().to_dict()
    return dask._task_spec.convert_legacy_graph(found)


def shape(order: dict[Key, int]) -> list[str]:
    """Return tasks in an order, with the random parts of their keys removed."""
    keys = sorted(order, key=order.__getitem__)
    return [f"{key_split(k)} {k[1:] if isinstance(k, tuple) else ()}" for k in keys]


def standardised() -> Any:
    """Tasks whose sets of inputs are iterated in the order in which they were filled."""
    x = da.random.default_rng().random((24, 24), chunks=2)
    return (x - x.mean(axis=0)) / x.std(axis=0)


def printing(program: Callable[[], Any]) -> str:
    """Return the code that prints the order of a program in another process."""
    made = f"shape(repeatable_order(graph_of({program.__name__}())))"
    return f"from {__name__} import *; print('\\n'.join({made}))"


# ---- The order ----------------------------------------------------------------------------------


def is_an_order(order: dict[Key, int], dsk: dict[Key, GraphNode]) -> bool:
    return sorted(order.values()) == list(range(len(dsk))) and set(order) == set(dsk)


def test_every_task_has_its_place_after_what_it_reads() -> None:
    dsk = graph_of(product())
    order = repeatable_order(dsk)
    assert is_an_order(order, dsk)
    assert all(order[d] < order[k] for k, node in dsk.items() for d in node.dependencies)


@pytest.mark.extended
@pytest.mark.parametrize("program", [product, standardised])
def test_it_is_the_same_in_every_process_and_for_every_name(program: Callable[[], Any]) -> None:
    printed = {
        subprocess.run(
            [sys.executable, "-c", printing(program)],
            env=os.environ | {"PYTHONHASHSEED": seed},
            cwd=Path(__file__).parents[3],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(printed) == 1
    assert len(printed.pop().splitlines()) == len(graph_of(program()))


def test_data_and_aliases_are_ordered_too() -> None:
    dsk: dict[Key, GraphNode] = {
        "data": DataNode("data", 5),
        "more": Task("more", operator.add, TaskRef("data"), TaskRef("outside")),
        "again": Alias("again", "more"),
    }
    order = repeatable_order(dsk)
    assert is_an_order(order, dsk)
    assert order["data"] < order["more"] < order["again"]


@pytest.mark.parametrize("keys", [[1, "1", ("1",), (1, 2)], [b"a", 2.5, ("a", "b"), ("a", 1)]])
def test_keys_of_every_kind_are_ordered(keys: list[Key]) -> None:
    dsk: dict[Key, GraphNode] = {k: Task(k, operator.add, 1, i) for i, k in enumerate(keys)}
    assert is_an_order(repeatable_order(dsk), dsk)


def test_an_empty_graph_has_an_order() -> None:
    assert repeatable_order({}) == {}


# ---- Graphs that arrive -------------------------------------------------------------------------


class Watch:
    """Records the graphs that a scheduler reads, and their order."""

    def __init__(self, s: Scheduler) -> None:
        self.seen: list[tuple[dict[Key, GraphNode], dict[Key, int]]] = []
        create = s._create_taskstate_from_graph

        @functools.wraps(create)
        def watched(**kwargs: Any) -> Any:
            dsk, places = copy.copy(kwargs["dsk"]), dict(kwargs["ordered"])
            self.seen.append((dsk, places))
            return create(**kwargs)

        s._create_taskstate_from_graph = watched  # type: ignore[method-assign]  # to watch it


@pytest.mark.extended
@planned_cluster(TWO_WORKERS, plugin=lambda: MarsSchedulerPlugin(fusion="off"))
async def test_an_arriving_graph_is_ordered(c, s, a, b):
    watch = Watch(s)
    first, second = product(), product()
    await c.compute(first)
    await c.compute(second)
    (one, places), (_, again) = watch.seen
    assert places == repeatable_order(one)
    assert shape(places) == shape(again)


@pytest.mark.extended
@planned_cluster(TWO_WORKERS)
async def test_simultaneous_graphs_have_their_own_orders(c, s, a, b):
    watch = Watch(s)
    futures = [*c.compute([product() for _ in range(2)]), c.compute(product()), c.submit(abs, -1)]
    await c.gather(futures)
    assert len(watch.seen) == 3
    assert all(places == repeatable_order(dsk) for dsk, places in watch.seen)


def most_held(dsk: Mapping[Key, GraphNode], places: Mapping[Key, int]) -> int:
    """Return how many results one worker holds at most that runs a graph in this order."""
    unread = Counter(key for node in dsk.values() for key in node.dependencies)
    held = most = 0
    for key in sorted(dsk, key=places.__getitem__):
        held += 1
        most = max(most, held)
        for own in dsk[key].dependencies:
            unread[own] -= 1
            held -= not unread[own]
    return most


@planned_cluster(TWO_WORKERS)
async def test_the_branches_of_a_joined_sum_are_followed(c, s, a, b):
    watch = Watch(s)
    days = da.ones((24, 240, 240), chunks=(1, 40, 40))
    assert await c.compute((days - days.mean(axis=0)).std()) == 0
    ((dsk, places),) = watch.seen
    assert places.keys() == dsk.keys()
    assert any(len(node.dependencies) > 20 for node in dsk.values())  # one task joins many
    assert most_held(dsk, places) < 0.6 * most_held(dsk, dask.order.order(dict(dsk)))


@planned_cluster(TWO_WORKERS, plugin=lambda: MarsSchedulerPlugin(fusion="off"))
async def test_unwanted_tasks_are_removed_before_dask_orders(c, s, a, b):
    watch = Watch(s)
    dsk = {"x": (operator.add, 1, 1), "unwanted": (operator.add, 1, 2), "y": (abs, "x")}
    assert await c.get(dsk, "y", sync=False) == 2
    assert {key for _, places in watch.seen for key in places} == {"x", "y"}


@planned_cluster(TWO_WORKERS)
async def test_an_order_given_by_the_client_is_kept(c, s, a, b):
    watch = Watch(s)
    places = {"a": 1, "b": 0}
    c._graph_to_futures = functools.partial(c._graph_to_futures, internal_priority=places)
    await c.gather(c.compute([dask.delayed(abs)(-1, dask_key_name=key) for key in places]))
    assert [given for _, given in watch.seen] == [places]


@gen_cluster(client=True, nthreads=TWO_WORKERS)
async def test_after_unregistering_dask_orders_even_below_another_handler(c, s, a, b):
    stock = s.stream_handlers["update-graph"]
    await c.register_plugin(MarsSchedulerPlugin(fusion="off"))
    ours = s.stream_handlers["update-graph"]
    assert ours != stock

    async def watch(**message: Any) -> None:
        await ours(**message)

    s.stream_handlers["update-graph"] = watch
    await c.unregister_scheduler_plugin(PLUGIN)
    assert s.stream_handlers["update-graph"] is watch
    seen = Watch(s)
    await c.compute(product())
    ((dsk, places),) = seen.seen
    assert places == dask.order.order(dict(dsk))


@pytest.mark.extended
@gen_cluster(client=True, nthreads=TWO_WORKERS)
async def test_a_failure_is_counted_and_dask_orders(c, s, a, b, monkeypatch):
    def broken(*args: Any) -> Any:
        raise ArithmeticError("no")

    monkeypatch.setattr("dask_marsched.host.graph.task_order.canonical", broken)
    await c.register_plugin(MarsSchedulerPlugin())
    watch = Watch(s)
    with captured_logger("dask_marsched") as log:
        await c.compute(product())
    ((dsk, places),) = watch.seen
    assert places == dask.order.order(dict(dsk))
    assert "ArithmeticError" in log.getvalue()
    assert report_of(s)["exceptions"] == {"order": 1}


@planned_cluster(TWO_WORKERS)
async def test_dask_reports_a_cycle(c, s, a, b):
    dsk = {"x": (abs, "y"), "y": (abs, "x")}
    with pytest.raises(RuntimeError, match=r"[Cc]ycle"):
        await c.get(dsk, "y", sync=False)


@planned_cluster(TWO_WORKERS)
async def test_a_single_task_is_ordered_without_a_thread(c, s, a, b, monkeypatch):
    monkeypatch.setattr("dask.order.order", None)
    assert await c.submit(abs, -1) == 1


@planned_cluster(TWO_WORKERS)
async def test_dask_reports_a_task_that_reads_itself(c, s, a, b):
    with pytest.raises(RuntimeError, match=r"[Cc]ycle"):
        await c.get({"x": (abs, "x")}, "x", sync=False)


# ---- For the twin -------------------------------------------------------------------------------


@planned_cluster(TWO_WORKERS)
async def test_the_twin_uses_the_order_of_the_scheduler(c, s, a, b):
    dsk = graph_of(product())
    assert order_for(s, dsk) == repeatable_order(dsk)
    await c.unregister_scheduler_plugin(PLUGIN)
    assert order_for(s, dsk) == dask.order.order(dict(dsk))
    await c.register_plugin(MarsSchedulerPlugin())
