"""Cases in which results or warnings once differed from Dask's."""

import operator

import dask
import dask.array as da
import numpy as np
import pytest
from dask._task_spec import convert_legacy_graph

from tests.host.kernels.kernel_runs import a_runner, run_both, with_warnings
from tests.kernels.expressions import steps


def numbers(*shape, seed=0, dtype="f8"):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def chunked(values):
    return da.from_array(values, chunks=(30, 300))


def single(values):
    return da.from_array(values, chunks=-1)


ZEROS = np.random.default_rng(0).choice([0.0, -0.0, 1], (100, 100))
TRUE = da.ones((256, 100), dtype=bool, chunks=-1)
ROW = single(numbers(1, 300))
LARGE = single(np.random.default_rng(0).integers(-(2**62), 2**62, (60, 301)))
LEVELS = numbers(120, 301, seed=5) + np.repeat(numbers(4, seed=5) * 1e3, 30)[:, None]
COMPLEX = single(numbers(9000) + 1j)
_POWERS = 10.0 ** np.random.default_rng(1).integers(-3, 4, (3, 180, 190, 3))
SINGLES = (numbers(3, 180, 190, 3) * _POWERS).astype("f4")
COMPLEX_SINGLES = (numbers(33001, 5, seed=2) + 1j * numbers(33001, 5, seed=3)).astype("c8")
ONES = da.ones(9000, dtype="f4", chunks=-1)
NULL = da.zeros(9001, chunks=-1)
MANY = 1 / NULL > 2  # divides by zero
FEW = NULL == 0
WHOLE = (da.ones(9001, chunks=-1) * 1e30).astype("i4")  # an invalid cast
HALVES = single(numbers(300, 60, dtype="f2"))

CASES = {
    "sum of bools as bool": (TRUE & TRUE).sum(axis=0, dtype=bool),
    "std of three axes": (single(numbers(12, 40, 60)).T * 2).std(axis=1),
    "var of three axes": single(numbers(12, 40, 60)).T.var(axis=1),
    "var of a view": (da.from_array(LEVELS, chunks=(30, 301)) + 0)[:, :300].var(),
    "nanmean, repeated rows": da.nanmean(da.broadcast_to(ROW, (60, 300), chunks=-1), axis=0),
    "nansum, repeated rows": da.nansum(da.broadcast_to(ROW, (60, 300), chunks=-1), axis=1),
    "nansum of integers as singles": da.nansum((LARGE + 0)[:, :300], dtype="f4"),
    "nanmean of integers": da.nanmean((LARGE + 0)[:, :300], axis=0),
    "nanvar of integers": da.nanvar((LARGE // 2**32)[:, :300], axis=0),
    "clip between arrays": da.clip(single(ZEROS), single(np.zeros((1, 100))), 2.0) * 1,
    "fmax of zeros": da.fmax(single(ZEROS) * single(np.ones((100, 1))), 0.0),
    "exp of a reversed row": da.exp(single(abs(numbers(100)))[::-1])
    + single(np.zeros((100, 100))).T,
    "power of complex numbers": da.map_blocks(
        operator.pow, COMPLEX, dask.delayed(int)(2), dtype="c16"
    )
    * 1,
    "where with a large integer": da.where(ONES > 0, 2**54 + 2**30 + 1, ONES) * np.float32(1),
    "cbrt of halves": da.cbrt(HALVES.T) + single(np.zeros((60, 300), "f2")),
    "nanvar of exp": da.nanvar(da.exp(chunked(numbers(60, 300))), axis=0),
    "nanstd of exp of integers": da.nanstd(da.exp(chunked(numbers(60, 300).astype("i4"))), axis=0),
    "var along no axis": da.exp(chunked(numbers(60, 300))).var(axis=()),
    "mean of singles along two axes": da.from_array(SINGLES, chunks=(1, 180, 190, 1)).mean((0, 3)),
    "nanmean of complex singles": da.nanmean(
        da.from_array(COMPLEX_SINGLES, chunks=(-1, 1)), axis=1, split_every=8
    ),
    "mean of complex singles": da.from_array(COMPLEX_SINGLES, chunks=(-1, 1)).mean(axis=1),
    "mean of many halves": (da.ones((600, 300), chunks=300, dtype="f2") * 2 + 1).mean(),
    "either or": (FEW & MANY) | (FEW & ~MANY),
    "xor with itself": MANY ^ MANY,
    "and with its opposite": MANY & ~MANY,
    "two comparisons": (1 / NULL > 2) & (1 / NULL <= 2),
    "where of equal values": da.where(MANY, NULL, NULL) + 1,
    "difference of the same": WHOLE - WHOLE,
    "comparison of the same": WHOLE >= WHOLE,
}


@pytest.mark.parametrize("name", CASES)
def test_the_same_bits_and_warnings(name, monkeypatch):
    with a_runner(monkeypatch) as runner:
        for got, wanted in run_both(CASES[name], runner):
            assert same(got, wanted)


def same(got, wanted):
    if isinstance(wanted, dict):  # equal counts are stored once
        return all(
            (got[key] == wanted[key]).all() if key == "n" else same(got[key], wanted[key])
            for key in wanted
        )
    if isinstance(wanted, np.ndarray):
        assert (got.dtype, got.shape, steps(got)) == (wanted.dtype, wanted.shape, steps(wanted))
    return np.asarray(got).tobytes() == np.asarray(wanted).tobytes()


def test_strings(monkeypatch):
    x = (da.ones(9000, chunks=-1) * 2).astype(np.dtypes.StringDType())
    (task,) = convert_legacy_graph(dict(dask.optimize(x)[0].__dask_graph__())).values()
    with a_runner(monkeypatch) as runner:
        got, _ = with_warnings(runner.wrap(task), {})
    assert (got == "2.0").all()
