"""Tasks of dask.array and xarray are read into expressions, and give the results of Dask."""

import json
import operator
import os
import subprocess
import sys
import traceback

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
from dask._task_spec import DataNode, Task, TaskRef

from dask_marsched.host.kernels.structure import read
from dask_marsched.host.kernels.task_runner import KernelRunner
from tests.host.kernels.kernel_runs import run_both
from tests.kernels.expressions import awake

SHAPE, CHUNKS = (128, 300), (64, 300)
RANDOM = np.random.default_rng(0)
X = da.from_array(RANDOM.random(SHAPE) + 0.1, chunks=CHUNKS)
HOLES = RANDOM.random(SHAPE)
HOLES[3, 5] = np.nan
Y = da.from_array(HOLES, chunks=CHUNKS)
A = xr.DataArray(Y, dims=("t", "z"))
I4 = (X * 100).astype("i4")

#: By name: the array, and the number of evaluated expressions of its chunks.
EXPRESSIONS = {
    "operators": ((0.5 - X) ** 2 + 0.8 * (Y - X**2) ** 2, 2),
    "polynomial": (3 * X**3 + 2 * X**2 + X + 1, 2),
    "ufuncs": (da.exp(-X) * da.sin(Y), 2),
    "sum": ((X * 2 + Y).sum(), 2),
    "mean": ((X * 2 + Y).mean(axis=0), 2),
    "std": ((X * 2 + Y).std(), 4),
    "var": (X.var(axis=1), 4),
    "max": (abs(X - Y).max(axis=1), 2),
    "min": (abs(X - Y).min(axis=0), 2),
    "argmax": ((X - Y).argmax(axis=0), 2),
    "argmin": ((X * 2 - Y).argmin(), 2),
    "argmin rows": ((X * 2 - Y * Y).argmin(axis=1), 2),
    "where": (da.where(X > 0.5, X, 0), 2),
    "clip": (da.clip(X, 0.2, 0.7).astype("f4") * 2, 2),
    "clip one side": (da.clip(X, None, 0.7) * 2, 2),
    "nanmean": (da.nanmean(Y * 2, axis=1), 2),
    "nansum": (da.nansum(Y * 2 + X, axis=0), 2),
    "nanvar": (da.nanvar(Y * 2 + X), 4),
    "any": (((X > 0.1) & (Y > 0.5)).any(axis=1), 2),
    "isnan": (da.where(da.isnan(Y), 0.0, Y) * 2, 2),
    "transposed": ((X.T * 2 + Y.T).sum(axis=0), 2),
    "prod": ((X * 1.5).prod(axis=1), 2),
    "scaled": ((X - X.mean()) / (X.std() + 1e-6) * (X.max() * 2), 6),
    "integers": (I4 * 3 + I4 // 7 - I4 % 5, 2),
    "inside": ((da.random.default_rng(1).random(SHAPE, chunks=CHUNKS) * 2 + X).sum(), 2),
    "mask": (X[X * 2 + Y > 1], 2),
    "broadcast": ((X * X[:1] + Y[:, :1]).sum(axis=0), 2),
    "xarray mean": (((A * 2 + 1).mean("t")).data, 2),
    "xarray where": (A.where(A > 0.3).sum("t").data, 2),
    "xarray fillna": (A.fillna(0).std().data, 4),
    "xarray clip": ((A.clip(min=0.2) * 2).mean().data, 2),
    "complex": ((X + 1j * Y).var(), 0),
    "masked": ((da.ma.masked_greater(X, 0.5) * 2 + 1).sum(), 0),
}


def same(got, wanted):
    assert type(got) is type(wanted)
    if isinstance(wanted, dict):
        assert got.keys() == wanted.keys()
        for name in wanted:
            same(got[name], wanted[name])
    elif isinstance(wanted, np.ma.MaskedArray):
        assert np.ma.allclose(got, wanted, masked_equal=True)
    elif getattr(getattr(wanted, "dtype", None), "names", None):
        for name in wanted.dtype.names:
            same(got[name], wanted[name])
    elif isinstance(wanted, np.ndarray | np.generic):
        assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.extended
@pytest.mark.parametrize("name", EXPRESSIONS)
def test_results_are_those_of_dask(name, runner):
    collection, fused = EXPRESSIONS[name]
    for got, wanted in run_both(collection, runner):
        same(got, wanted)
    assert runner.kernels.report()["fused"] == fused


def test_chunks_of_an_array_have_the_same_steps():
    (optimized,) = dask.optimize(EXPRESSIONS["operators"][0])
    tasks = dict(optimized.__dask_graph__())
    name = optimized.name
    first, second = (read(tasks[(name, n, 0)]) for n in (0, 1))
    assert first.steps == second.steps
    assert first.params != second.params


def test_literals_are_not_part_of_the_steps():
    found = []
    for factor in (2, 3):
        (optimized,) = dask.optimize(X * factor + 1)
        found.append(read(dict(optimized.__dask_graph__())[(optimized.name, 0, 0)]))
    assert found[0].steps == found[1].steps


def test_an_error_in_a_task_is_raised():
    def fails(x):
        raise KeyError("the user's")

    y = (X * 2 + 1).map_blocks(fails, dtype="f8", meta=np.empty((0, 0)))
    (optimized,) = dask.optimize(y)
    runner = KernelRunner(awake(), lambda *_: pytest.fail("not ours"))
    (task,) = [
        task
        for key, task in dict(optimized.__dask_graph__()).items()
        if isinstance(task, Task) and key[1:] == (0, 0)
    ]
    with pytest.raises(KeyError, match="the user's") as caught:
        runner.wrap(task)({name: np.ones(CHUNKS) for name in task.dependencies})
    files = [frame.filename for frame in traceback.extract_tb(caught.tb)[1:-1]]
    hidden = (os.path.join("distributed", "worker"), os.path.join("dask", "_task_spec"))
    assert files
    assert all(any(part in name for part in hidden) for name in files), "not the user's frames"


@pytest.mark.parametrize("name", ["sum", "mean", "max", "std"])
def test_an_error_of_shapes_says_what_dask_says(name, runner):
    x = da.ones((73, 6), chunks=-1).map_blocks(lambda block: block[:3], dtype=float)
    (optimized,) = dask.optimize(getattr(x + 2 * da.ones((73, 6), chunks=-1), name)())
    task = next(t for t in dict(optimized.__dask_graph__()).values() if not t.dependencies)
    messages = []
    for run in (task, runner.wrap(task)):
        with pytest.raises(ValueError, match="broadcast") as caught:
            run({})
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_a_task_that_cannot_be_read_runs_as_in_dask():
    failures = []
    runner = KernelRunner(awake(), lambda where, error: failures.append(where))
    runner._read = lambda task: 1 / 0
    task = Task("x", np.sum, DataNode(None, np.ones(3)))
    assert runner.run(task, {}) == 3
    assert failures == ["kernel.read"]


def test_a_long_line_of_joined_tasks_runs_as_in_dask(runner):
    """Reading it recurses deeper than Python allows."""
    steps = [Task(0, np.ones, 100_000)]
    steps += [Task(n, operator.add, TaskRef(n - 1), 1) for n in range(1, 1_500)]
    assert (runner.wrap(Task.fuse(*steps, key="line"))({}) == 1_500).all()


def test_a_user_function_runs_once(runner):
    calls = []

    def counted(x):
        calls.append(1)
        return x + 1

    y = X[:64].map_blocks(counted, dtype="f8", meta=np.empty((0, 0))) * 2 + 3
    (optimized,) = dask.optimize(y)
    dsk = dict(optimized.__dask_graph__())
    for task in dsk.values():
        if task.dependencies:
            continue
        calls.clear()
        runner.wrap(task)({})
        assert len(calls) <= 1


_PLANNED = """
import json, dask.array as da, numpy as np, dask
from dask._task_spec import convert_legacy_graph
from dask_marsched.host.kernels.structure import read
x = da.ones((64, 300), chunks=(64, 300))
found = []
for y in [(x * 2 + x**2), (x * 2 + 1).sum(), (x > 1) * x]:
    assert "expr" in type(y).__module__
    dsk = convert_legacy_graph(dict(dask.optimize(y)[0].__dask_graph__()))
    found.append(sorted({step.kind for t in dsk.values() for step in read_all(t)}))
print(json.dumps(found))
"""


@pytest.mark.extended
def test_tasks_of_query_planning_arrays_are_read():
    source = _PLANNED.replace("read_all(t)", "(read(t).steps if t.dependencies else ())")
    environment = {**os.environ, "DASK_ARRAY__QUERY_PLANNING": "True"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", source],
        env=environment, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for kinds in json.loads(done.stdout.splitlines()[-1]):
        assert "operation" in kinds
