"""Partial results of tree reductions are combined as in Dask, without temporary arrays."""

import functools
import warnings

import dask.array as da
import numpy as np
import pytest
from dask._task_spec import convert_legacy_graph
from dask.sizeof import sizeof

from dask_marsched.host.graph.result_sizes import chunk_nbytes
from dask_marsched.host.kernels import partial_results
from dask_marsched.host.kernels.partial_results import UnfitError, combination, combine
from tests.host.kernels.kernel_runs import peak_memory, run_graph
from tests.sized_runs import arrive

RANDOM = np.random.default_rng(5)
SIDE = 190


def chunked(dtype="f8", count=6, awkward=False):
    values = RANDOM.normal(0, 3, (count, SIDE, 200)) * 10.0 ** RANDOM.integers(-3, 4, (SIDE, 200))
    if awkward:
        values[:, ::3] = -0.0
        values[0, 1::3] = np.nan
        values[1, ::7] = np.inf
    return da.from_array(values.astype(dtype), chunks=(1, SIDE, 200))


def ocean(count=6):
    """Return chunks with NaN everywhere, in a part, and in the first rows, which all have."""
    values = RANDOM.normal(0, 3, (count, SIDE, 200))
    values[1] = np.nan
    values[2:3, : SIDE // 2] = np.nan
    values[:, :5] = np.nan
    values[3:5, 2] = -0.0
    values[3:4, 1, ::7] = np.inf
    return da.from_array(values, chunks=(1, SIDE, 200))


def grid():
    return da.from_array(RANDOM.normal(0, 3, (2, 4, SIDE, 200)), chunks=(1, 1, SIDE, 200))


def columns(count=6):
    return da.from_array(RANDOM.normal(0, 3, (1 << 16, count)), chunks=(1 << 16, 1))


#: Reductions, with whether all their stages are combined without Dask.
CASES = {
    "sum": (lambda: chunked().sum(axis=0), True),
    "sum of singles": (lambda: chunked("f4").sum(axis=0), True),
    "sum of integers": (lambda: chunked("i8").sum(axis=0), True),
    "sum of short integers": (lambda: chunked("i4").sum(axis=0), True),
    "sum of complex": (lambda: (chunked() * 1j).sum(axis=0), True),
    "sum of awkward": (lambda: chunked(awkward=True).sum(axis=0), True),
    "sum of columns": (lambda: columns().sum(axis=1), True),
    "sum of many columns": (lambda: columns(20).sum(axis=1, split_every=20), False),
    "sum along two axes": (lambda: grid().sum(axis=(0, 1)), True),
    "mean": (lambda: chunked().mean(axis=0), True),
    "mean, keepdims": (lambda: chunked().mean(axis=0, keepdims=True), True),
    "mean of singles": (lambda: chunked("f4").mean(axis=0), True),
    "mean of awkward": (lambda: chunked(awkward=True).mean(axis=0), True),
    "mean of columns": (lambda: columns().mean(axis=1), True),
    "mean along two axes": (lambda: grid().mean(axis=(0, 1)), True),
    "mean without NaN": (lambda: da.nanmean(chunked(awkward=True), axis=0), True),
    "mean without NaN of singles": (lambda: da.nanmean(chunked("f4"), axis=0), True),
    "mean of the sea": (lambda: da.nanmean(ocean(), axis=0), True),
    "mean of the sea along two axes": (
        lambda: da.nanmean(ocean(8).reshape(2, 4, SIDE, 200), axis=(0, 1)),
        True,
    ),
    "var": (lambda: chunked().var(axis=0), True),
    "var, ddof": (lambda: chunked().var(axis=0, ddof=1), True),
    "var of too few": (lambda: chunked(count=2).var(axis=0, ddof=3), True),
    "var of singles": (lambda: chunked("f4").var(axis=0), True),
    "std of many singles": (lambda: chunked("f4", 40).std(axis=0, ddof=1), True),
    "var of singles without NaN": (lambda: da.nanvar(ocean().astype("f4"), axis=0), True),
    "std of integers": (lambda: chunked("i4").std(axis=0, keepdims=True), True),
    "var of awkward": (lambda: chunked(awkward=True).var(axis=0), True),
    "var without NaN": (lambda: da.nanvar(chunked(), axis=0, ddof=1), True),
    "var of the sea": (lambda: da.nanvar(ocean(), axis=0), True),
    "var of a sea without land": (lambda: da.nanvar(ocean()[:, 5:], axis=0), True),
    "std of the sea, ddof": (lambda: da.nanstd(ocean()[:, 5:], axis=0, ddof=2), True),
    "var along two axes": (lambda: grid().var(axis=(0, 1)), True),
    "third moment": (lambda: da.reductions.moment(chunked(), 3, axis=0), None),
    "max": (lambda: chunked().max(axis=0), None),
}


def stages(collection, runner):
    """Yield the combining tasks of a collection with their inputs, made by kernels if possible."""
    found = []

    def run(task, values):
        if combination(task) is not None:
            found.append((task, values))
        with np.errstate(all="ignore"):
            return runner.wrap(task)(values)

    run_graph(collection, run)
    return found


@pytest.mark.parametrize("name", CASES)
def test_results_are_dasks_to_the_last_bit(name, runner):
    make, is_combined = CASES[name]
    found = stages(make(), runner)
    assert bool(found) == (is_combined is not None)
    combined = []
    for task, values in found:
        with np.errstate(all="ignore"):
            wanted = task(values)
            partial_results_are_equal(runner.wrap(task)(values), wanted)
            try:
                combine(task, combination(task), values)
            except (UnfitError, FloatingPointError):
                combined.append(False)
            else:
                combined.append(True)
    assert not found or all(combined) == is_combined


def partial_results_are_equal(ours, dasks):
    if isinstance(dasks, dict):
        assert list(ours) == list(dasks)
        for key in dasks:
            partial_results_are_equal(ours[key], dasks[key])
        return
    assert type(ours) is type(dasks)
    np.testing.assert_array_equal(ours, dasks, strict=True)
    assert np.array_equal(np.signbit(ours.real), np.signbit(dasks.real)) or np.isnan(dasks).any()


def test_combining_takes_no_memory_but_the_result(runner):
    source = da.from_array(RANDOM.random((4, 1024, 512)), chunks=(1, 1024, 512))
    with_nan = da.concatenate([da.where(source[:1] < 0.1, np.nan, source[:1]), source[1:]])
    for collection in (
        source.mean(axis=0),
        source.var(axis=0),
        source.sum(axis=0),
        da.nanmean(with_nan, axis=0),
        da.nanvar(with_nan, axis=0),
    ):
        for task, values in stages(collection, runner):
            runner.wrap(task)(values)  # compares with Dask
            ours, dasks = peak_memory(runner.wrap(task), values), peak_memory(task, values)
            assert ours < 1.4 * 8 * 1024 * 512
            assert dasks > 2 * ours


@pytest.mark.parametrize("reduced", [da.var, da.nanvar, da.mean, da.nanmean])
def test_counts_that_all_elements_share_take_no_memory(reduced, runner):
    for task, values in stages(reduced(chunked(), axis=0), runner):
        for partial in values.values():
            assert not any(partial["n"].strides)
        combined = runner.wrap(task)(values)
        assert not isinstance(combined, dict) or not any(combined["n"].strides)


@pytest.mark.parametrize("reduced", [da.mean, da.var])
def test_the_sizes_of_partial_results_are_known(reduced, runner):
    collection = reduced(chunked(), axis=0)
    expr, dsk = arrive(collection)
    sizes = chunk_nbytes(expr, dsk, counts_once=True).exact
    made = {}

    def run(task, values):
        result = runner.wrap(task)(values)
        if isinstance(result, dict):
            made[task.key] = sizeof(result)
        return result

    run_graph(collection, run)
    assert len(made) > 6
    assert made == {key: sizes[key] for key in made}


def test_counts_without_nan_may_differ():
    expr, dsk = arrive(da.nanmean(chunked(), axis=0))
    assert chunk_nbytes(expr, dsk, counts_once=True).exact == chunk_nbytes(expr, dsk).exact


def all_infinite():
    values = np.full((2, SIDE, 200), np.inf)
    values[1] = -np.inf
    return da.from_array(values, chunks=(1, SIDE, 200))


@pytest.mark.parametrize(
    "make",
    [
        lambda: all_infinite().sum(axis=0),
        lambda: da.nanvar(ocean(2), axis=0),
        lambda: da.nanvar(ocean(2), axis=0, ddof=1),
        lambda: da.nanstd(ocean(2).astype("f4"), axis=0),
    ],
)
def test_warnings_are_dasks(make, runner):
    *_, (task, inputs) = stages(make(), runner)
    with warnings.catch_warnings(record=True) as ours:
        warnings.simplefilter("always")
        runner.wrap(task)(inputs)
    with warnings.catch_warnings(record=True) as dasks:
        warnings.simplefilter("always")
        task(inputs)
    assert [str(w.message) for w in ours] == [str(w.message) for w in dasks] != []


def test_a_variance_of_nothing_is_combined_and_warned_of(runner):
    *_, (task, inputs) = stages(da.nanvar(ocean(), axis=0), runner)
    with pytest.warns(RuntimeWarning, match="invalid value encountered in divide"):
        found = combine(task, combination(task), inputs)
    assert np.isnan(found[3:5]).all()
    with np.errstate(invalid="raise"), pytest.raises(FloatingPointError):
        combine(task, combination(task), inputs)
    with warnings.catch_warnings(), np.errstate(invalid="ignore"):
        warnings.simplefilter("error")
        np.testing.assert_array_equal(combine(task, combination(task), inputs), found)


def test_a_form_that_differs_from_dasks_is_left_to_dask(runner, monkeypatch):
    monkeypatch.setattr(partial_results, "_proven", {})
    monkeypatch.setattr(partial_results, "add_parts", lambda parts, into: np.copyto(into, parts[0]))
    task, values = stages(chunked().sum(axis=0), runner)[0]
    with pytest.raises(UnfitError):
        combine(task, combination(task), values)
    np.testing.assert_array_equal(runner.wrap(task)(values), task(values))


def test_an_exception_is_counted_and_dask_combines(runner, monkeypatch):
    def failing(*_):
        raise ZeroDivisionError

    task, values = stages(chunked().sum(axis=0), runner)[0]
    caught = []
    monkeypatch.setattr(partial_results, "add_parts", failing)
    monkeypatch.setattr(runner, "_caught", lambda where, error: caught.append(where))
    np.testing.assert_array_equal(runner.wrap(task)(values), task(values))
    assert caught == ["kernel.combine"]


def test_other_functions_are_not_combinations():
    def mine(x, axis, keepdims):
        return x

    x = chunked()
    for function in mine, np.max, np.prod:
        reduced = da.reduction(x, function, functools.partial(function), axis=0, dtype="f8")
        tasks = convert_legacy_graph(dict(reduced.__dask_graph__())).values()
        assert all(combination(task) is None for task in tasks)
