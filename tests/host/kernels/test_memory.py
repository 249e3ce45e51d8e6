"""A task that runs by kernels takes no more memory than in Dask."""

import tracemalloc

import dask
import dask.array as da
import numpy as np
import pytest
from dask._task_spec import _execute_subgraph, convert_legacy_graph

from dask_marsched.host.kernels.task_runner import KernelRunner
from tests.kernels.expressions import awake

ELEMENTS = 1 << 17
FLOATS = 1 + np.random.default_rng(0).random(ELEMENTS)
SECOND = np.timedelta64(1, "s")


def chain(x, times=2, plus=1.5):
    for _ in range(5):
        x = x * times + plus
    return x


def later(x):
    for _ in range(10):
        x = x + SECOND
    return x


def powers(x):
    """Return an expression that NumPy evaluates, as its exponents are constant along an axis."""
    row = da.from_array(np.arange(1.0, 129).reshape(1, 128), chunks=-1)
    return chain(chain(x.reshape(-1, 128)) ** row * 0 + 1)


def opaque(x):
    """Return an expression with a function that is not recognized."""
    for _ in range(5):
        x = x.map_blocks(np.sort, dtype=x.dtype, meta=np.empty(0, x.dtype)) * 2 + 1
    return x


CASES = {
    "masked": (np.ma.masked_greater(FLOATS, 1.9), chain),
    "sum of masked": (np.ma.masked_greater(FLOATS, 1.9), lambda x: chain(x).sum()),
    "longdouble": (FLOATS.astype("g"), chain),
    "dates": (np.arange(ELEMENTS).astype("M8[ns]"), later),
    "powers": (FLOATS, powers),
    "opaque": (FLOATS.astype("g"), opaque),
    "understood": (FLOATS, chain),
}


@pytest.mark.parametrize("name", CASES)
def test_a_task_takes_no_more_memory_than_in_dask(name, runner):
    array, function = CASES[name]
    source = da.from_array(array, chunks=-1, asarray=False).persist(scheduler="sync")
    (optimized,) = dask.optimize(function(source))
    results, peaks = {}, []
    tasks = convert_legacy_graph(dict(optimized.__dask_graph__()))

    def result(key):
        if key not in results:
            task = tasks[key]
            values = {name: result(name) for name in task.dependencies}
            results[key] = runner.wrap(task)(values)  # reads and compiles
            peaks.append([peak(run, values) / array.nbytes for run in (runner.wrap(task), task)])
        return results[key]

    for key in tasks:
        result(key)
    assert all(mine <= theirs + 0.1 for mine, theirs in peaks), peaks
    assert max(theirs for _, theirs in peaks) > 1.9


def test_intermediate_results_are_released_between_mean_and_variance():
    source = da.from_array(FLOATS, chunks=-1, asarray=False).persist(scheduler="sync")
    (optimized,) = dask.optimize((source.map_blocks(np.sort) + 1).var())
    tasks = convert_legacy_graph(dict(optimized.__dask_graph__()))
    task = next(t for t in tasks.values() if getattr(t, "func", None) is _execute_subgraph)
    values = dict.fromkeys(task.dependencies, FLOATS)
    by_numpy = KernelRunner(awake(), pytest.fail)
    mine, theirs = [peak(run, values) / FLOATS.nbytes for run in (by_numpy.wrap(task), task)]
    assert mine < 2.2
    assert theirs > 2.9


def peak(run, values):
    tracemalloc.start()
    try:
        run(values)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
