"""Tasks let go of inputs and intermediate results after their last use."""

import weakref

import dask.array as da
import numpy as np
import pytest
from dask import optimize
from dask._task_spec import Alias, DataNode, Task, TaskRef, convert_legacy_graph

from dask_marsched.host.graph.fused_tasks import join
from dask_marsched.host.kernels.task_runner import KernelRunner
from dask_marsched.host.worker.input_release import InputReleasingTask, OwnedInputs, consume
from tests.kernels.expressions import awake


class Result:
    """Something that a task returns."""


class Results:
    """Makes results, and notes how many of them exist while one is made."""

    def __init__(self):
        self.alive = weakref.WeakSet()
        self.counts = []

    def made(self, *_):
        made = Result()
        self.alive.add(made)
        self.counts.append(len(self.alive))
        return made


def reading(results, key, *names):
    return Task(key, results.made, *map(TaskRef, names))


def fused_twice(results):
    """Three inputs become one, and that is read by a task that Dask had fused before."""
    inner = Task.fuse(
        reading(results, "b", "a"), reading(results, "c", "b"), reading(results, "d", "c")
    )
    whole = {"a": reading(results, "a", "x", "y", "z"), "d": inner}
    return join("d", ["a"], whole)


def the_inputs(results):
    return {name: results.made() for name in "xyz"}


@pytest.mark.parametrize(
    "stand_in",
    [
        InputReleasingTask,
        lambda task: InputReleasingTask(KernelRunner(awake(), pytest.fail).wrap(task)),
    ],
    ids=["alone", "with kernels"],
)
def test_a_task_holds_only_what_its_steps_need(stand_in):
    results = Results()
    task, data = fused_twice(results), the_inputs(results)
    results.counts.clear()
    result = stand_in(task)(data)
    assert data == {}
    assert results.counts == [4, 2, 2, 2]
    assert list(results.alive) == [result]


def test_inputs_that_are_not_owned_are_kept():
    results = Results()
    data = the_inputs(results)
    consume(fused_twice(results), data)
    assert list(data) == ["x", "y", "z"]


def test_a_result_that_other_steps_read_is_returned():
    steps = {
        "a": Task("a", np.negative, TaskRef("x")),
        "b": Alias("b", "a"),
        "c": Task("c", np.add, TaskRef("b"), TaskRef("a")),
        "d": DataNode("d", 5),
        "e": Task("e", np.multiply, TaskRef("c"), TaskRef("d")),
    }
    task = Task.fuse(*steps.values())
    assert consume(task, OwnedInputs(x=2)) == task({"x": 2}) == -20


def test_an_error_is_that_of_the_task():
    task = Task.fuse(Task("a", np.negative, TaskRef("x")), Task("b", int, TaskRef("a")))
    with pytest.raises(TypeError, match="only"):
        InputReleasingTask(task)({"x": np.ones(2)})


COLLECTIONS = {
    "variance": lambda x: (x.rechunk((40, 4)) + 1).var(),
    "neighbours": lambda x: x.map_overlap(lambda block: block * 2, depth=1),
    "products": lambda x: (x @ x.T + x).sum(axis=0),
    "places": lambda x: da.argmax(x - x.mean(axis=0), axis=1),
    "several readers": lambda x: (x + 1) * (x + 1).T - x.cumsum(axis=1),
}


@pytest.mark.parametrize("name", COLLECTIONS)
def test_results_are_dasks(name):
    x = da.random.default_rng(1).random((40, 40), chunks=10)
    (optimized,) = optimize(COLLECTIONS[name](x))
    tasks = convert_legacy_graph(dict(optimized.__dask_graph__()))
    results = {}

    def result(key):
        if key not in results:
            task = tasks[key]
            inputs = {other: result(other) for other in task.dependencies}
            results[key] = task(inputs)
            assert_same(InputReleasingTask(task)(inputs), results[key])
            assert inputs == {}
        return results[key]

    for key in tasks:
        result(key)


def assert_same(mine, theirs):
    assert type(mine) is type(theirs)
    if isinstance(theirs, dict):
        assert mine.keys() == theirs.keys()
        for key in theirs:
            assert_same(mine[key], theirs[key])
    elif isinstance(theirs, list | tuple):
        for a, b in zip(mine, theirs, strict=True):
            assert_same(a, b)
    else:
        np.testing.assert_array_equal(mine, theirs)
