"""Partial results of flox's groupby reductions are combined as in flox, in little memory."""

import tracemalloc

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
from dask._task_spec import convert_legacy_graph

from dask_marsched.host.kernels import grouped_results
from dask_marsched.host.kernels.combining import combination, combine
from dask_marsched.host.kernels.grouped_results import GroupedCombination
from dask_marsched.host.kernels.partial_results import UnfitError
from tests.host.kernels.kernel_runs import a_runner, both

xr = pytest.importorskip("xarray")
pytest.importorskip("flox")

STEPS, ROWS, COLUMNS = 24, 280, 240


@pytest.fixture
def runner(monkeypatch):
    with a_runner(monkeypatch) as made:
        yield made


def dataset(chunks, dtype="f8", missing=0.0):
    random = np.random.default_rng(3)
    shape = (STEPS, ROWS, COLUMNS)
    values = random.normal(0, 3, shape) * 10.0 ** random.integers(-3, 4, shape)
    values = (values if np.dtype(dtype).kind == "f" else np.clip(values, -100, 100)).astype(dtype)
    if missing:
        values[random.random(shape) < missing] = np.nan
        values[:, 7] = np.nan
    time = pd.date_range("2000-01-01", periods=STEPS, freq="MS")
    return xr.DataArray(
        da.from_array(values, chunks=chunks), dims=("time", "y", "x"), coords={"time": time}
    )


def quarterly(data, how, **options):
    with xr.set_options(use_flox=True):
        return getattr(data.groupby("time.quarter"), how)("time", **options).data


def stages(collection):
    """Yield the tasks that combine flox's partial results, with their inputs."""
    (optimized,) = dask.optimize(collection)
    dsk = convert_legacy_graph(dict(optimized.__dask_graph__()))
    results = {}

    def result(key):
        if key not in results:
            task = dsk[key]
            values = {name: result(name) for name in task.dependencies}
            if isinstance(combination(task), GroupedCombination):
                found.append((task, values))
            results[key] = task(values)
        return results[key]

    found = []
    for key in dsk:
        result(key)
    return found


#: Reductions, with whether all their stages are combined some rows at a time.
CASES = {
    "mean": (lambda: quarterly(dataset((1, -1, -1)), "mean"), True),
    "mean of several steps": (lambda: quarterly(dataset((5, -1, -1)), "mean"), True),
    "mean with missing": (lambda: quarterly(dataset((5, -1, -1), missing=0.1), "mean"), None),
    "sum": (lambda: quarterly(dataset((1, -1, -1)), "sum"), True),
    "sum, least count": (
        lambda: quarterly(dataset((1, -1, -1), missing=0.1), "sum", min_count=2),
        True,
    ),
    "sum of integers": (lambda: quarterly(dataset((1, -1, -1), "i8"), "sum"), True),
    "mean of singles": (lambda: quarterly(dataset((1, -1, -1), "f4"), "mean"), True),
    "max": (lambda: quarterly(dataset((1, -1, -1)), "max"), True),
    "min with missing": (lambda: quarterly(dataset((5, -1, -1), missing=0.1), "min"), True),
    "count": (lambda: quarterly(dataset((1, -1, -1), missing=0.1), "count"), True),
    "prod": (lambda: quarterly(dataset((1, -1, -1)), "prod"), None),
    "any": (lambda: quarterly(dataset((1, -1, -1)) > 0, "any"), None),
}


@pytest.mark.parametrize("name", CASES)
def test_results_are_floxes_to_the_last_bit(name, runner, monkeypatch):
    monkeypatch.setattr(grouped_results, "_LEAST", 1)
    make, is_combined = CASES[name]
    found = stages(make())
    assert found
    combined = []
    for task, values in found:
        are_equal(*both(task, values, runner))
        try:
            combine(task, combination(task), values)
        except (UnfitError, FloatingPointError):
            combined.append(False)
        else:
            combined.append(True)
    assert is_combined is None or set(combined) == {is_combined}


def are_equal(ours, floxes):
    assert type(ours) is type(floxes)
    if isinstance(floxes, dict):
        assert list(ours) == list(floxes)
        for key in floxes:
            are_equal(ours[key], floxes[key])
    elif isinstance(floxes, list | tuple):
        for one, other in zip(ours, floxes, strict=True):
            are_equal(one, other)
    else:
        np.testing.assert_array_equal(ours, floxes, strict=True)
        assert np.asarray(ours).tobytes() == np.asarray(floxes).tobytes()
        assert np.asarray(ours).strides == np.asarray(floxes).strides


@pytest.mark.parametrize("how", ["var", "first"])
def test_what_has_another_form_is_left_to_flox(how):
    assert stages(quarterly(dataset((1, -1, -1)), how)) == []


def test_little_is_left_to_flox():
    for task, values in stages(quarterly(dataset((1, 40, 40)), "mean")):
        with pytest.raises(UnfitError):
            combine(task, combination(task), values)


def test_combining_takes_little_memory_beside_the_result(runner):
    def peak(run, *args):
        tracemalloc.start()
        try:
            run(*args)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    nbytes = 8 * ROWS * COLUMNS
    partials = [(t, v) for t, v in stages(quarterly(dataset((1, -1, -1)), "mean")) if len(v) > 2]
    assert partials
    for task, values in partials:
        runner.wrap(task)(values)  # compares with flox
        ours, floxes = peak(runner.wrap(task), values), peak(task, values)
        assert ours < floxes
        assert floxes > 2 * len(values) * nbytes
