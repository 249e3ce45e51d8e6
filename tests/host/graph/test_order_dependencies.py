"""Dask's order is the same with the faster mapping of dependencies."""

import gc
import random

import dask.order
import pytest
from dask._task_spec import Alias, DataNode, DependenciesMapping, Task, TaskRef

from dask_marsched.host.graph import order_dependencies
from dask_marsched.host.graph.order_dependencies import Dependencies
from dask_marsched.host.graph.task_order import order_and_free, repeatable_order
from dask_marsched.host.replacements import Replacements


def random_graph(seed):
    draw = random.Random(seed)
    dsk = {}
    for key in range(1000, 1000 + draw.randrange(2, 60)):
        inputs = draw.sample(sorted(dsk), min(len(dsk), draw.choice([0, 1, 1, 2, 3])))
        if not inputs and draw.random() < 0.4:
            dsk[key] = DataNode(key, 1)
        elif len(inputs) == 1 and draw.random() < 0.2:
            dsk[key] = Alias(key, inputs[0])
        else:
            dsk[key] = Task(key, max, *map(TaskRef, inputs))
    return dsk


@pytest.fixture
def installed():
    with Replacements() as undo:
        order_dependencies.install(undo)
        assert dask.order.DependenciesMapping is Dependencies
        yield
    assert dask.order.DependenciesMapping is DependenciesMapping


@pytest.mark.parametrize("seed", range(40))
def test_order_is_that_of_dask(seed, request):
    dsk = random_graph(seed)
    expected = dask.order.order(dsk)
    request.getfixturevalue("installed")
    assert dask.order.order(dsk) == expected


def test_removed_tasks_are_no_dependencies():
    dsk = {1: DataNode(1, 1), 2: Task(2, max, TaskRef(1)), 3: Task(3, max, TaskRef(1), TaskRef(2))}
    found, expected = Dependencies(dsk), DependenciesMapping(dsk)
    assert found[3] == expected[3] == {1, 2}
    for mapping in (found, expected):
        del mapping[1]
    del dsk[1]
    assert dict(found.items()) == dict(expected.items()) == {2: frozenset(), 3: {2}}
    assert list(found.keys()) == list(expected.keys())
    assert list(found.values()) == list(expected.values())
    assert [found.get(key) for key in (1, 2)] == [expected.get(key) for key in (1, 2)]
    assert list(found) == [2, 3]
    assert len(found) == 2
    assert 1 not in found
    with pytest.raises(KeyError):
        found[1]


def test_another_mapping_stays(monkeypatch):
    monkeypatch.setattr(dask.order, "DependenciesMapping", dict)
    with Replacements() as undo:
        order_dependencies.install(undo)
        assert dask.order.DependenciesMapping is dict


def test_no_sets_are_left_for_the_collector(installed):
    dsk = {
        ("x", i): Task(("x", i), abs, *(TaskRef(("x", j)) for j in {i // 2} - {i}))
        for i in range(2_000)
    }
    repeatable_order(dsk)
    was_on = gc.isenabled()
    gc.disable()
    try:
        gc.collect()
        order_and_free(dsk)
        assert gc.collect() < len(dsk)
    finally:
        if was_on:
            gc.enable()
