"""Tasks with the same outline have the same steps, and templates find their parameters."""

import cloudpickle
import dask
import dask.array as da
import numpy as np
import pytest
from dask._task_spec import Task, _execute_subgraph

from dask_marsched.host.kernels.structure import read
from dask_marsched.host.kernels.task_runner import KernelRunner
from dask_marsched.host.kernels.templates import Template, outline
from tests.kernels.expressions import awake

X = da.from_array(np.random.default_rng(0).random((64, 300)), chunks=(32, 300))
Y = da.from_array(np.random.default_rng(1).random((64, 300)), chunks=(32, 300))


def tasks(collection):
    """Return the tasks of an array's chunks, as they come to a worker."""
    (optimized,) = dask.optimize(collection)
    found = [
        task
        for task in dict(optimized.__dask_graph__()).values()
        if isinstance(task, Task) and task.func is _execute_subgraph
    ]
    assert found
    return cloudpickle.loads(cloudpickle.dumps(found))


def expressions():
    powers = [X**2 * Y + 1, X**3 * Y + 1, X**2.0 * Y + 1, 2**X * Y + 1]
    literals = [X * 2 + Y - 3, X * 2.0 + Y - 3, X * np.nan + Y - 3, Y * 2 + X - X]
    sums = [((X * 2 + Y).sum(axis=a, keepdims=k)) for a in (0, 1, None) for k in (True, False)]
    others = [
        (X * 2 + Y).mean(axis=0), (X * 2 + Y).mean(axis=0, dtype="f4"), da.clip(X + Y, None, 1) * 2,
        da.clip(X + Y, 1, None) * 2, (X + Y).argmax(axis=0), (X + Y).argmax(axis=1), (X + Y).std(),
        (X + Y).astype("f4") * 2, (X + Y).astype("i4") * 2, da.where(X > Y, X, Y) * 2,
    ]  # fmt: skip
    return [*powers, *literals, *sums, *others]


def test_tasks_with_one_outline_have_the_same_steps():
    structures = {}
    for collection in expressions():
        for task in tasks(collection):
            drawn = outline(task)
            if drawn is not None:
                structures.setdefault(drawn.text, set()).add(read(task).steps)
    assert len(structures) > 15
    assert {len(found) for found in structures.values()} == {1}


def test_chunks_of_an_array_have_one_outline():
    for collection in ((X * 2 + Y) / (X - 3), (X * 2 + Y).mean(axis=0)):
        texts = {outline(task).text for task in tasks(collection)}
        assert len(texts) == 1


@pytest.mark.extended
@pytest.mark.parametrize("number", range(len(expressions())))
def test_a_template_finds_the_parameters_of_a_full_read(number):
    for task in tasks(expressions()[number]):
        drawn = outline(task)
        if drawn is None:
            continue
        places = {}
        steps, params = read(task, places)
        found = Template(task, params, places, drawn).params(task, drawn.nodes)
        for step, mine, full in zip(steps, found, params, strict=True):
            if step.kind == "input":
                assert mine == full
            elif step.kind == "literal":
                assert mine is full
            else:
                assert mine.node is full.node


def test_a_template_uses_the_literals_of_each_task():
    runner = KernelRunner(awake(), lambda *_: pytest.fail("not ours"))
    for factor, addend in ((2, 0.0), (2, -0.0), (3, np.nan), (2.0, 1), (True, 1)):
        for task in tasks(X * factor + Y * 0 + addend):
            values = {name: np.full((32, 300), -0.0) for name in task.dependencies}
            wanted, got = task(values), runner.wrap(task)(values)
            np.testing.assert_array_equal(got, wanted)
            np.testing.assert_array_equal(np.signbit(got), np.signbit(wanted))
            assert got.dtype == wanted.dtype


def test_functions_between_expressions_get_their_inputs():
    runner = KernelRunner(awake(), lambda *_: pytest.fail("not ours"))
    y = (X * 2 + 1).map_blocks(np.sort, dtype="f8") * 3 + 2
    for _ in range(2):
        for task in tasks(y):
            values = {
                name: np.random.default_rng(2).random((32, 300)) for name in task.dependencies
            }
            np.testing.assert_array_equal(runner.wrap(task)(values), task(values))
    assert runner._templates
