"""Partial results of flox's groupby reductions are combined as in flox, in little memory."""

import warnings
from functools import partial

import dask.array as da
import numpy as np
import pandas as pd
import pytest

from dask_marsched.host.kernels import grouped_results, partial_results
from dask_marsched.host.kernels.combining import combination, combine
from dask_marsched.host.kernels.grouped_results import GroupedCombination
from dask_marsched.host.kernels.partial_results import UnfitError
from tests.host.kernels.kernel_runs import both, peak_memory, run_both, run_graph

xr = pytest.importorskip("xarray")
flox = pytest.importorskip("flox")

STEPS, ROWS, COLUMNS = 24, 280, 240


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
    """Return the tasks that combine flox's partial results, with their inputs.

    The graph is not optimized: Dask would fuse the last stage with what takes its result.
    """
    found = []

    def run(task, values):
        if isinstance(combination(task), GroupedCombination):
            found.append((task, values))
        return task(values)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run_graph(collection, run)
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
    monkeypatch.setattr(grouped_results, "_LEAST_NBYTES", 1)
    make, is_combined = CASES[name]
    found = stages(make())
    assert {combination(task).is_last for task, _ in found} == {True, False}
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


@pytest.mark.parametrize("name", CASES)
def test_results_in_fused_tasks_are_floxes(name, runner, monkeypatch):
    monkeypatch.setattr(grouped_results, "_LEAST_NBYTES", 1)
    for ours, floxes in run_both(CASES[name][0](), runner):
        are_equal(ours, floxes)


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


def reduced(finalize, shape=(300, 200, 12), axes=(0, 1, 2), **options):
    """Return a reduction by a user's functions, of 12 chunks."""
    values = np.random.default_rng(5).normal(0, 3, shape).transpose(axes)
    array = da.from_array(values, chunks=(-1, -1, 1))
    own = flox.Aggregation(
        name="own",
        chunk=("sum", "nanlen"),
        combine=("sum", "sum"),
        finalize=finalize,
        fill_value=(0, 0),
        dtypes=(None, np.intp),
        final_dtype=np.float64,
    )
    by = np.arange(12) % 3
    options = {"method": "map-reduce", "expected_groups": np.arange(3), **options}
    return flox.groupby_reduce(array, by, func=own, **options)[0]


def last_stage(collection):
    return next(stage for stage in stages(collection) if combination(stage[0]).is_last)


def test_finalize_runs_once_and_warns_as_in_flox(runner, monkeypatch):
    def finalize(total, count):
        calls.append(np.geterr())
        warnings.warn(f"{total.shape}, {count.sum()}", stacklevel=1)
        return total / (count - 4)  # NumPy warns

    monkeypatch.setattr(grouped_results, "_LEAST_NBYTES", 1)
    monkeypatch.setattr(partial_results, "_proven", {})
    calls = []
    task, values = last_stage(reduced(finalize))
    calls.clear()
    with np.errstate(divide="warn", over="ignore"):
        ours, floxes = both(task, values, runner)
        assert calls == [np.geterr()] * 2
        combine(task, combination(task), values)
    assert len(calls) == 2
    are_equal(ours, floxes)


@pytest.mark.parametrize("error", [UnfitError, FloatingPointError, KeyError])
def test_errors_of_finalize_reach_the_caller(error, runner, monkeypatch):
    def finalize(total, count):
        calls.append(True)
        if is_failing:
            raise error("theirs")
        return total

    monkeypatch.setattr(grouped_results, "_LEAST_NBYTES", 1)
    calls, is_failing = [], False
    task, values = last_stage(reduced(finalize))
    calls, is_failing = [], True
    combine(task, combination(task), values)  # flox need not combine it
    with pytest.raises(error, match="theirs") as caught:
        runner.wrap(task)(values)
    assert calls == [True]
    assert caught.value.__context__ is None


def test_wide_rows_are_left_to_flox(monkeypatch):
    monkeypatch.setattr(grouped_results, "_LEAST_NBYTES", 1)
    monkeypatch.setattr(grouped_results, "_proved", None)  # not even tried
    monkeypatch.setattr(grouped_results, "_PIECE", 4096)
    for task, values in stages(reduced(None, (15, 1200, 12))):
        with pytest.raises(UnfitError):
            combine(task, combination(task), values)


def test_a_trial_is_small(monkeypatch):
    sizes = []

    def proved(stage, nested):
        small = grouped_results._mapped(
            nested, partial(grouped_results._drawn, np.random.default_rng(0))
        )
        sizes.extend(a.shape for part in small for a in part["intermediates"])
        return False

    monkeypatch.setattr(grouped_results, "_LEAST_NBYTES", 1)
    monkeypatch.setattr(partial_results, "_proven", {})
    monkeypatch.setattr(grouped_results, "_proved", proved)
    for task, values in stages(reduced(None)):
        with pytest.raises(UnfitError):
            combine(task, combination(task), values)
    assert set(sizes) == {(5, 7, 1, 3)}


def test_a_trial_that_fails_is_remembered(runner, monkeypatch):
    tried = []

    def failing(random, array):
        tried.append(True)
        raise ZeroDivisionError

    monkeypatch.setattr(grouped_results, "_LEAST_NBYTES", 1)
    monkeypatch.setattr(partial_results, "_proven", {})
    monkeypatch.setattr(grouped_results, "_drawn", failing)
    task, values = last_stage(reduced(None))
    for _ in range(2):
        with pytest.raises(UnfitError):
            combine(task, combination(task), values)
        are_equal(*both(task, values, runner))
    assert tried == [True]


@pytest.mark.parametrize("axes", [(1, 0, 2), (0, 1, 2)])
def test_rows_that_are_not_outermost_in_memory_are_left_to_flox(axes, runner, monkeypatch):
    monkeypatch.setattr(grouped_results, "_LEAST_NBYTES", 1)
    task, values = last_stage(reduced(None))
    for part in values.values():
        moved = [np.ascontiguousarray(a.transpose(*axes, 3)) for a in part["intermediates"]]
        part["intermediates"] = tuple(a.transpose(*axes, 3) for a in moved)
    are_equal(*both(task, values, runner))
    if axes == (0, 1, 2):
        combine(task, combination(task), values)
    else:
        with pytest.raises(UnfitError):
            combine(task, combination(task), values)


def test_cohorts_are_floxes(runner, monkeypatch):
    monkeypatch.setattr(grouped_results, "_LEAST_NBYTES", 1)
    found = stages(reduced(None, method="cohorts", expected_groups=None))
    assert found
    for task, values in found:
        are_equal(*both(task, values, runner))
        combine(task, combination(task), values)


def test_other_groups_in_a_part_are_left_to_flox(runner, monkeypatch):
    monkeypatch.setattr(grouped_results, "_LEAST_NBYTES", 1)
    task, values = last_stage(reduced(None, method="cohorts", expected_groups=None))
    part = next(iter(values.values()))
    part["groups"] = part["groups"][..., ::-1] + 1
    are_equal(*both(task, values, runner))
    with pytest.raises(UnfitError):
        combine(task, combination(task), values)


def test_combining_takes_little_memory_beside_the_result(runner):
    nbytes = 8 * ROWS * COLUMNS
    partials = [(t, v) for t, v in stages(quarterly(dataset((1, -1, -1)), "mean")) if len(v) > 2]
    assert partials
    for task, values in partials:
        runner.wrap(task)(values)  # compares with flox
        ours, floxes = peak_memory(runner.wrap(task), values), peak_memory(task, values)
        assert ours < floxes
        assert floxes > 2 * len(values) * nbytes
