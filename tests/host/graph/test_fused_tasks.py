"""Which tasks may be fused with others."""

import logging
import operator
from functools import partial
from typing import Any

import dask
import dask.array as da
import dask.bag as db
import distributed
import numpy as np
import pytest
from dask._task_spec import Alias, DataNode, GraphNode, List, Task, TaskRef, convert_legacy_graph
from dask.delayed import delayed
from dask.utils import methodcaller
from distributed import Event, get_client, get_worker, secede, worker_client
from tlz import compose

from dask_marsched.host.graph.bundles import bundled
from dask_marsched.host.graph.fused_tasks import (
    ALONE,
    CERTAIN,
    UNCERTAIN,
    Joinable,
    join,
    targets,
    tasks_in,
)
from dask_marsched.host.graph.result_sizes import ChunkSizes
from dask_marsched.scheduler_plugin import MarsSchedulerPlugin
from tests.harness import planned_cluster

ONES = da.ones((4, 4), chunks=2)


def add(x: int, y: int) -> int:
    return x + y


def inc(x: int) -> int:
    return x + 1


class Demanding:
    """A callable object that knows which attributes it has."""

    def __getattr__(self, name: str) -> Any:
        raise (AttributeError if name.startswith("__") else KeyError)(name)

    def __call__(self, x: int) -> int:
        return x + 1


def test_an_object_whose_attributes_raise_can_be_joined() -> None:
    assert Joinable()(Task("a", Demanding(), 1)) == UNCERTAIN


async def coroutine(x: int) -> int:
    return x


def submits(x: int) -> Any:
    with worker_client() as client:
        return client.submit(inc, x).result()


def asks(x: int) -> Any:
    return get_client().submit(inc, x).result()


def names(x: int) -> Any:
    return get_worker().get_current_task()


def leaves(x: int) -> int:
    secede()
    return x


def waits(x: int) -> int:
    Event("go").wait()
    return x


@pytest.mark.parametrize(
    "function", [coroutine, submits, asks, names, leaves, waits, partial(waits)]
)
def test_functions_with_side_effects(function: Any) -> None:
    joinable = Joinable()
    assert joinable(Task("a", add, 1, 2))
    assert not joinable(Task("a", function, 1))
    inner = {"b": Task("b", function, 1), "c": Task("c", add, TaskRef("b"), 1)}
    assert not joinable(join("c", ["b"], inner))


EVENT = object.__new__(Event)


def add_of_mine(x: Any, y: Any = 0) -> Any:
    return x + y


@pytest.mark.parametrize(
    "task",
    [
        Task("a", add, 1, EVENT),
        Task("a", add_of_mine, 1, EVENT),
        Task("a", add_of_mine, 1, y=EVENT),
        Task("a", add_of_mine, 1, [{"x": (EVENT, 2)}]),
        Task("a", add_of_mine, 1, List(TaskRef("b"), EVENT)),
        Task("a", partial(add_of_mine, y=EVENT), 1),
        Task("a", partial(add_of_mine, [EVENT]), 1),
        Task("a", add_of_mine, 1, Task("b", add, 1, EVENT)),
        join("b", ["a"], {"a": Task("a", add_of_mine, 1, y=EVENT), "b": Alias("b", "a")}),
        join(
            "b",
            ["a"],
            {"a": Task("a", add_of_mine, 1, EVENT), "b": Task("b", add, TaskRef("a"), 1)},
        ),
    ],
)
def test_arguments_with_side_effects(task: Task) -> None:
    assert not Joinable()(task)


def encloses(event: Any) -> Any:
    def wait(x: int) -> int:
        event.wait()
        return x

    return wait


def sets(event: Any) -> Any:
    def open_gate(x: int) -> int:
        event.set()
        return x

    return open_gate


class Waits:
    def __init__(self, event: Any) -> None:
        self.event = event

    def __call__(self, x: int) -> int:
        self.event.wait()
        return x

    def method(self, x: int) -> int:
        return x


class WaitsForGlobal:
    def __call__(self, x: int) -> int:
        return waits(x)


def has_default(x: int, event: Any = EVENT) -> int:
    return x


def names_global(x: int) -> int:
    EVENT.wait()
    return x


def calls_another(x: int) -> int:
    return waits(x)


def calls_itself(x: int) -> int:
    return calls_itself(x - 1) if x else 0


@pytest.mark.parametrize(
    "function",
    [
        encloses(EVENT),
        Waits(EVENT),
        Waits(EVENT).method,
        WaitsForGlobal(),
        has_default,
        names_global,
        calls_another,
        partial(partial(add, EVENT)),
        np.vectorize(waits),
        compose(abs, waits),
    ],
)
def test_what_functions_hold(function: Any) -> None:
    assert not Joinable()(Task("a", function, 1))


def test_a_function_that_calls_itself() -> None:
    assert Joinable()(Task("a", calls_itself, 1)) == UNCERTAIN


def even(x: int) -> Any:
    return odd(x - 1) if x else EVENT.wait()


def odd(x: int) -> Any:
    return even(x - 1)


@pytest.mark.parametrize("functions", [(even, odd), (odd, even)])
def test_functions_that_call_each_other(functions: Any) -> None:
    joinable = Joinable()
    assert not any(joinable(Task("a", function, 1)) for function in functions)


def test_a_fused_task_without_a_call() -> None:
    assert Joinable()(GraphNode.fuse(DataNode("a", 1), Alias("b", "a"))) == CERTAIN


def kinds(collection: Any) -> set[int]:
    """Return the verdicts on a collection's tasks."""
    (collection,) = dask.optimize(collection)
    graph = convert_legacy_graph(dict(collection.__dask_graph__()))
    joinable = Joinable()
    return {joinable(node) for node in graph.values() if isinstance(node, Task)}


def add_info(x: Any, block_info: Any = None) -> Any:
    return x + 1


def waits_with_info(x: Any, block_info: Any = None) -> Any:
    return waits(x)


@pytest.mark.parametrize(
    ("call", "users", "waiting"),
    [
        (lambda f: ONES.map_blocks(f, dtype=float), add_of_mine, waits),
        (lambda f: ONES.map_blocks(f, dtype=float), add_info, waits_with_info),
        (lambda f: da.apply_along_axis(f, 0, ONES, dtype=float, shape=(4,)), add_of_mine, waits),
        (
            lambda f: da.apply_gufunc(f, "()->()", ONES, vectorize=True, output_dtypes=float),
            add_of_mine,
            waits,
        ),
        (lambda f: db.range(4, 2).map(f), add_of_mine, waits),
        (lambda f: db.range(4, 2).filter(f), add_of_mine, waits),
    ],
    ids=["map_blocks", "block_info", "along axis", "vectorize", "bag map", "bag filter"],
)
def test_users_functions_that_functions_of_libraries_call(
    call: Any, users: Any, waiting: Any
) -> None:
    assert min(kinds(call(users))) == UNCERTAIN
    assert min(kinds(call(waiting))) == ALONE


def test_stages_of_a_shuffle() -> None:
    from distributed.shuffle._rechunk import rechunk_unpack

    assert not Joinable()(Task("a", rechunk_unpack, 1, 2, 3))


@planned_cluster([("127.0.0.1", 4)], plugin=lambda: MarsSchedulerPlugin(fusion="subgraphs"))
async def test_tasks_that_wait_for_each_other_through_what_they_enclose(c, s, a):
    joined = []
    for i in range(60):
        event = Event(f"{i}", client=c)
        x = delayed(inc)(i)
        waiter = delayed(encloses(event), name=f"wait-{i}")(x)
        opener = delayed(sets(event), name=f"set-{i}")(x)
        joined.append(delayed(add)(waiter, opener))
    assert await c.gather(c.compute(joined)) == [2 * (i + 1) for i in range(60)]


def test_the_tasks_in_a_fused_one_are_told():
    x = {"x": Task("x", inc, 1), "y": Task("y", inc, TaskRef("x")), "z": Alias("z", "y")}
    assert tasks_in(x["x"]) == tasks_in(x["z"]) == []
    assert tasks_in(join("y", ["x"], x)) == ["x", "y"]
    assert tasks_in(join("z", ["x", "y"], x)) == ["x", "y", "z"]
    x["sum"] = Task("sum", add, TaskRef("y"), TaskRef("x"))
    bundles, replaced = bundled(x, [["x", "y"]], ChunkSizes())
    bundle, first, second = replaced
    assert tasks_in(bundles[bundle]) == ["x", "y"]
    assert tasks_in(join("sum", [bundle, first, second], bundles))[:2] == ["x", "y"]
    assert targets(x) == {"z": "y"}
    assert targets({"z": x["z"]}) == {}


def waits_for_what_it_imports(x: int) -> int:
    from distributed import Event

    Event("go").wait()
    return x


def waits_for_what_dask_imports(x: int) -> int:
    from dask.distributed import Lock

    Lock("go").acquire()
    return x


def waits_beside_a_large_class(x: int) -> int:
    logging.Logger("x")
    return waits_for_an_attribute(x)


def waits_for_an_attribute(x: int) -> int:
    distributed.Event("go").wait()
    return x


class Waiter:
    def wait(self, x: int) -> int:
        return self.inner(x)

    def inner(self, x: int) -> int:
        Event("go").wait()
        return x

    def __call__(self, x: int) -> int:
        return self.inner(x)


def makes_one(x: int) -> int:
    return Waiter()(x)


@pytest.mark.parametrize(
    "function",
    [
        waits_for_what_it_imports,
        waits_for_what_dask_imports,
        waits_for_an_attribute,
        waits_beside_a_large_class,
        Waiter().wait,
        Waiter(),
        makes_one,
        methodcaller("wait"),
        operator.methodcaller("wait", 1),
    ],
)
def test_tasks_that_wait_in_other_ways_stay_apart(function: Any) -> None:
    assert Joinable()(Task("a", function, 1)) == ALONE


def test_methods_of_arrays_are_joined() -> None:
    assert Joinable()(Task("a", methodcaller("sum"), TaskRef("x"))) == CERTAIN
    of_text = operator.methodcaller("split", ",")
    assert Joinable()(Task("a", of_text, TaskRef("x"))) == CERTAIN


class Anything:
    """Has any attribute."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()

    def __call__(self, x: int) -> int:
        return x


@pytest.mark.timeout(20)
def test_objects_with_any_attribute_end() -> None:
    assert Joinable()(Task("a", Anything(), 1)) == UNCERTAIN
