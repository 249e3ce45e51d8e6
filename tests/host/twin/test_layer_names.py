"""Layers are listed in the order in which tasks read them, independent of their names."""

from __future__ import annotations

import dask
import dask.array as da
import pytest
from dask._task_spec import Alias, List, Task, TaskRef
from dask.array.core import Array
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph

from dask_marsched.host.twin.layer_names import layer_names


def _array(name, of):
    graph = HighLevelGraph.from_collections(
        name, {(name, 0): Task((name, 0), sum, List(*(TaskRef((x.name, 0)) for x in of)))}, of
    )
    return Array(graph, name, ((2,),), dtype=float)


@pytest.mark.parametrize("names", [("a", "b", "c"), ("b", "c", "a"), ("c", "a", "b")])
def test_layers_follow_the_order_of_arguments(names):
    parts = [da.zeros(2, chunks=2, name=name) for name in names]
    found = layer_names([_array("sum", parts)])
    assert found == ["sum", *names]


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
def test_arguments_of_blockwise_layers_come_in_order(names):
    left, right = (da.zeros(2, chunks=2, name=name) for name in names)
    assert layer_names([left - right])[1:] == list(names)


def test_layers_come_once_and_in_the_order_of_the_collections():
    x, y = (da.zeros(2, chunks=2, name=name) for name in "xy")
    assert layer_names([y, x, y + x])[:2] == ["y", "x"]
    assert len(layer_names([y, x, y + x])) == 3


def test_delayed_objects_have_layers_too():
    step = dask.delayed(max)
    first, second = step(1, 2, dask_key_name="second"), step(3, 4, dask_key_name="first")
    assert layer_names([step(first, second, dask_key_name="last")]) == ["last", "second", "first"]


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
def test_the_layer_of_a_delayed_object_holds_those_that_it_was_called_with(names):
    step = dask.delayed(max)
    left, right = (step(1, 2, dask_key_name=name) for name in names)
    middle = step([left], [right, da.zeros(2, chunks=2, name="zeros")], dask_key_name="middle")
    found = layer_names([step(middle, dask_key_name="last")])
    assert found[:4] == ["last", "middle", *names]
    assert any("zeros" in name for name in found[4:])


def test_a_tuple_with_a_list_in_it_is_no_key():
    tasks = {"end": Task("end", str, TaskRef("x")), "x": (str, ("spec", [1]))}
    graph = HighLevelGraph({"end": tasks}, {"end": set()})
    assert layer_names([Delayed("end", graph)]) == ["end", "x"]


def test_layers_that_tasks_do_not_name_are_sorted():
    layers = {"end": {"end": Alias("end", "x")}, "b-2": {"b": 1}, "a-1": {"x": 2}}
    graph = HighLevelGraph(layers, {"end": {"b-2", "a-1"}, "b-2": set(), "a-1": set()})
    assert layer_names([Delayed("end", graph)]) == ["end", "a-1", "b-2"]


def test_objects_without_layers_are_skipped():
    assert layer_names([3, "text"]) == []
