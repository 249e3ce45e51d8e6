"""Results of kernels are those of Dask to the last bit, for any inputs."""

import operator

import dask.array as da
import numpy as np
import pytest
import xarray as xr
from dask._task_spec import Task, TaskRef

from dask_marsched.kernels.numexpr_backend import NumexprBackend
from tests.host.kernels.kernel_runs import LLVM, a_runner, both, run_both
from tests.kernels.expressions import steps

SHAPE, CHUNKS = (60, 300), (30, 300)
RANDOM = np.random.default_rng(7)


def single_threaded_numexpr():
    pytest.importorskip("numexpr").set_num_threads(1)
    return NumexprBackend()


AWKWARD = [0.0, -0.0, 1, -1, 2, 0.5, np.nan, np.inf, -np.inf, 1e-300, 1e300, 3e38, 65504]
BACKENDS = {"llvm": lambda: LLVM, "numexpr": single_threaded_numexpr}


@pytest.fixture(params=BACKENDS)
def runner(request, monkeypatch):
    with a_runner(monkeypatch, BACKENDS[request.param]()) as made:
        yield made


def chunked(values):
    return da.from_array(values, chunks=CHUNKS)


def awkward(dtype="f8"):
    with np.errstate(all="ignore"):
        return chunked(RANDOM.choice(AWKWARD, SHAPE).astype(dtype))


def whole(dtype, low=-50, high=50):
    return chunked(RANDOM.integers(low, high, SHAPE).astype(dtype))


class Source:
    """Returns chunks in the memory layout of the array."""

    def __init__(self, values):
        self.values, self.shape, self.dtype, self.ndim = (
            values, values.shape, values.dtype, values.ndim,
        )  # fmt: skip

    def __getitem__(self, index):
        return self.values[index]


def lying(values):
    return da.from_array(Source(values), chunks=CHUNKS, asarray=False)


def unaligned(values):
    copy = np.frombuffer(np.empty(values.nbytes + 1, "u1")[1:], values.dtype)
    copy = copy.reshape(values.shape)
    copy[...] = values
    return copy


def field(values):
    record = np.zeros(values.shape, [("flag", "i1"), ("value", values.dtype)])
    record["value"] = values
    return record["value"]


FLOATS = RANDOM.choice(AWKWARD, SHAPE)
X = awkward()
Z = (chunked(RANDOM.normal(0, 3, SHAPE)) + 1j * chunked(RANDOM.normal(0, 3, SHAPE))) * 1
HALF = awkward("f2")
SINGLE = awkward("f4")
TEXT = chunked(RANDOM.choice(np.array(["a", "bb"]), SHAPE))
DAYS = chunked(np.datetime64("2000-01-01", "ns") + RANDOM.integers(0, 9999, SHAPE).astype("m8[h]"))
RECORDS = chunked(np.zeros(SHAPE, [("a", "f8"), ("b", "i1")]))
OBJECTS = chunked(np.full(SHAPE, 2**80, dtype=object))
PACKED = whole("i2", -32768, 32767)
NORMAL = RANDOM.normal(0, 3, SHAPE)
#: A branch that warns for zeros alone is not noticed among other warnings.
POINTED = chunked(np.where(abs(NORMAL) < 0.3, 0.0, NORMAL))
WIDE = whole("i8", -(2**50), 2**50)
BY_FLOATS = [
    lambda x: x.astype("f8"),
    lambda x: da.floor(x.astype("f4")),
    lambda x: da.where(x > 0, x.astype("f8"), 0.5),
    lambda x: x.astype("f8") * x.astype("f8"),
]
LAYOUTS = {
    "unaligned": unaligned(FLOATS),
    "field of a record": field(FLOATS),
    "big-endian": FLOATS.astype(">f8"),
    "Fortran": np.asfortranarray(FLOATS),
    "reversed": FLOATS[::-1, ::-1],
    "mirrored": FLOATS[:, ::-1],
    "one row": np.broadcast_to(FLOATS[:1], SHAPE),
    "one value": np.broadcast_to(FLOATS[0, 0], SHAPE),
}

ROW, COLUMN, TURNED = (
    da.from_array(Source(values), chunks=-1, asarray=False)
    for values in (NORMAL[:1], NORMAL[:, :1], np.asfortranarray(NORMAL))
)


def needs_c(x):
    assert x.flags.c_contiguous
    return x.ravel(order="A").reshape(x.shape)


def user(x):
    return x.map_blocks(needs_c, dtype=x.dtype, meta=np.empty((0, 0)))


#: Awkward collections by name.
CASES = {
    "complex square": [Z**2 + 1, (Z * 0) ** 2 * 1],
    "complex root": Z**0.5 + 1,
    "complex reciprocal": Z**-1 * 2,
    "complex power of a float": Z**2.0 + 1,
    "complex": (X + 1j * X) * Z,
    "root of halves": [(HALF * 1) ** 0.5 + 1, (da.abs(Z).astype("f2") * -0.0) ** 0.5 * 1],
    "root by power": np.power(X * 1, 0.5) + 1,
    "power of an integer scalar": (X * 1) ** np.int64(2) + 1,
    "power of a float scalar": (SINGLE * 1) ** np.float32(0.5) + 1,
    "power of a constant": X ** da.full(SHAPE, 0.5, chunks=CHUNKS) * 1,
    "power of a column": X ** (da.abs(X[:, :1]) * 0 + 0.5) + 1,
    "square of a scalar": X * da.nanmin(whole("f8") / 7) ** 2 + 1,
    "integers that are scalars": whole("i4") + (whole("i4").max() * 0 + (2**31 - 1)) * np.int32(2),
    "text and number": (TEXT == 5) | (X > 0),
    "text": (TEXT == "a") | (TEXT != "bb"),
    "date and number": (DAYS == 5) | (X > 0),
    "dates": (DAYS - DAYS[:1]) / np.timedelta64(1, "D") + 1,
    "records": (RECORDS == RECORDS) & (RECORDS["a"] == 0),
    "fields": (RECORDS["a"] + RECORDS["b"]) * 2,
    "objects": (OBJECTS + 1) * 2 - OBJECTS,
    "halves": (HALF * 60000).sum(axis=1),
    "one condition casts": da.where(da.abs(X) < 1e9, X, 0).astype("i8") % 7,
    "one branch casts": da.where(X > 0, (X * 1).astype("i4"), 3),
    "nested conditions": da.where(X != 0, 1 / X, da.where(X > 1, da.log(X), -0.0)) * 2,
    "one branch of many operations": [
        da.where(POINTED > 1, f, 2.0) + 0
        for f in (-(1 / POINTED), -(POINTED / POINTED), abs(POINTED * 1e308), 1 / POINTED > 0)
    ],
    "only whether": [
        da.sqrt(POINTED).any(axis=0), da.sqrt(POINTED).astype(bool) | (POINTED > 9),
        da.where(da.sqrt(POINTED), POINTED, 2.0), (1 / POINTED) < (1 / POINTED),
        *(f(whole("i8", -2, 2).astype("f8") ** -1) for f in (da.isnan, da.isinf, da.sign)),
        *(f(da.sqrt(whole("i4", -2, 2))) for f in (da.isnan, da.isinf, da.isfinite, da.sign)),
    ],
    "casts": [(X * 1).astype(t) for t in ("i1", "u2", "u4", "u8", "f2", "f4", "?")],
    "integers by way of floats": [f(WIDE).astype(t) for t in ("i4", "i2", "u1") for f in BY_FLOATS],
    "row, column and Fortran": [f((ROW + COLUMN) * TURNED) for f in (abs, user, da.sum, da.std)],
    "sums of them along axes": [((ROW + COLUMN) * TURNED).sum(axis=a) for a in (0, 1)],
    "Fortran first": [f((ROW * TURNED) + COLUMN) for f in (abs, da.sum, da.std)],
    "unpacked": da.where(PACKED == -32768, np.float32(np.nan), PACKED * np.float32(0.01) + 273),
    "beyond the type": (whole("u1", 0, 200) + 1 < 300) & (whole("i1") > -1000),
    "floats beyond the type": [
        (chunked(NORMAL) * 2.0**40).astype(t) + 1 for t in ("i4", "u4", "i2", "u2")
    ],
    "u8 and i8": (whole("u8", 0, 99) - whole("i8")) * 2,
    "integers by zero": whole("i4") // whole("i4", -2, 2) + whole("i4") % whole("i4", -2, 2),
    "least by minus one": (whole("i4") * 0 + (-(2**31))) // whole("i4", -1, 2) + 1,
    "negative integer power": whole("i4") ** 2.0 + whole("i4", 1, 9) ** -1.0,
    "bools": ((X > 0) + (X > 1)) * (X < 2) ^ (X != X),
    "ties": [f(da.where(X > 0, X, 0.0), axis=a) for f in (da.argmin, da.argmax) for a in (0, 1)],
    "nan-variants": [f(X * 2, axis=0) for f in (da.nansum, da.nanmean, da.nanvar, da.nanprod)],
    "ddof": [(whole("f8") * 2).var(axis=a, ddof=1, keepdims=True) for a in (None, 0, 1)],
    "sum's dtype": [(whole("i2") * 2).sum(axis=0, dtype=t) for t in ("i4", "u1", "f4", "c16")],
    "empty chunks": da.concatenate([X[:0] * 2, X * 2]).sum(axis=0),
    "masked": da.ma.masked_invalid(X) * 2 + 1,
    "xarray": (xr.DataArray(X, dims=("t", "x")) * 2).where(lambda x: x > 0).std("x", ddof=1).data,
}  # fmt: skip


@pytest.mark.extended
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", CASES)
def test_results_and_warnings_are_those_of_dask(name, runner):
    found = CASES[name]
    for collection in found if isinstance(found, list) else [found]:
        for got, wanted in run_both(collection, runner):
            identical(got, wanted)


@pytest.mark.extended
@pytest.mark.parametrize("layout", LAYOUTS)
def test_results_in_any_layout_are_those_of_dask(layout, runner):
    x = lying(LAYOUTS[layout])
    power = np.float64(0.5)
    for collection in (x**power + 1, x**0.5 * 2, da.exp(x) - x, (x * 2 + x).sum(axis=1)):
        for got, wanted in run_both(collection, runner):
            identical(got, wanted)


@pytest.mark.extended
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", ["mean", "nanstd", "prod", "min"])
@pytest.mark.parametrize("dtype", ["f4", "f8", "i2", "f2"])
def test_reductions_of_long_rows(name, dtype, runner):
    """Rows have several of NumPy's buffers, and blocks begin in the middle of one."""
    values = (np.random.default_rng(0).normal(0, 300, (6, 5, 1801))).astype(dtype)
    if dtype != "i2":
        values[2, 3, 7], values[3, 3, 8] = np.nan, -0.0
    x = da.from_array(values, chunks=(3, 5, 1801))
    for axis in (None, 1, (0, 2)):
        for got, wanted in run_both(getattr(da, name)(x * 2 + x, axis=axis), runner):
            identical(got, wanted)
    if runner.kernels.backend is LLVM:
        reduced = [e for e in runner.kernels.report()["expressions"] if e["backend"] == "llvm"]
        assert any("axis" in e["text"] for e in reduced) == (dtype != "f2")


@pytest.mark.parametrize("runner", ["llvm"], indirect=True)
def test_a_backend_may_lack_a_kernel_for_one_layout(runner):
    """Its kernel for aligned arrays is used again, and nothing is reported as a failure."""
    for values in (np.ones(SHAPE, "c8"), unaligned(np.ones(SHAPE, "c8")), np.ones(SHAPE, "c8")):
        for got, wanted in run_both(lying(values) * 2 + 1, runner):
            identical(got, wanted)
    assert runner.kernels.report()["fused"] >= 4


#: NumPy rounds its square and its absolute value in another way if it is in an array.
CIRCLING = np.complex128(1.3 + 2.1j)


@pytest.mark.parametrize("dtype", [np.longdouble, "c16", "f4"])
def test_a_variance_in_another_dtype(dtype, runner):
    """Dask reduces in dtypes that kernels have not, from inputs that are still there."""
    for got, wanted in run_both(da.exp(chunked(NORMAL)).var(dtype=dtype), runner):
        identical(got, wanted)


def fused(*operations):
    """Return a task that computes one operation after the other, as `fusion.graph` fuses them."""
    tasks, last = [], None
    for number, (function, *args) in enumerate(operations):
        tasks.append(Task(f"t{number}", function, *([TaskRef(last)] if last else []), *args))
        last = f"t{number}"
    return Task.fuse(*tasks)


def names_of(operations):
    return " ".join(function.__name__ for function, *_ in operations)


@pytest.mark.parametrize(
    "operations",
    [
        [(operator.mul, 2**40, 2**40), (operator.add, 1)],
        [(operator.add, True, True), (operator.truediv, 3)],
        [(operator.invert, 5), (operator.mod, 3)],
        [(operator.mul, 10**400, 3), (operator.sub, 1)],
        [(operator.mul, "a", 3), (operator.add, "b")],
        [(operator.add, 2, 3), (operator.mul, np.ones(9000, "f4")), (operator.add, 1)],
        [(operator.pow, 2, 3), (operator.mul, np.ones(9000, "i1")), (operator.add, 1)],
        [(operator.pow, np.float64(1.1), 2), (operator.mul, np.ones(9000)), (operator.add, 1)],
        [(operator.mul, np.int32(2**30), np.int32(4)), (operator.mul, np.ones(9000)),
         (operator.add, 1)],
        [(np.clip, np.arange(9000, dtype="u1"), None, 300), (operator.add, 1)],
        [(np.clip, np.arange(9000, dtype="u1"), -1, None), (operator.add, 1)],
        [(np.clip, np.arange(9000, dtype="u1"), 7, None), (operator.add, 1)],
        [(operator.mul, CIRCLING, CIRCLING), (operator.mul, np.ones(9000)), (operator.add, 1)],
        [(abs, CIRCLING), (operator.mul, np.ones(9000))],
        [(operator.truediv, np.float64(1), 0), (operator.mul, np.ones(9000)), (operator.add, 1)],
    ],
    ids=names_of,
)  # fmt: skip
def test_scalars_are_computed_by_their_operators(operations, runner):
    """Python's do not overflow and are promoted otherwise; NumPy's are rounded otherwise."""
    got, wanted = both(fused(*operations), {}, runner)
    identical(got, wanted)


def test_division_of_python_numbers_by_zero_raises(runner):
    task = fused((operator.truediv, 1, 0), (operator.add, 1))
    with pytest.raises(ZeroDivisionError):
        runner.wrap(task)({})


@pytest.mark.parametrize("runner", ["llvm"], indirect=True)
def test_kernels_of_several_dtypes_do_not_share_buffers(runner):
    ones = np.ones(SHAPE)
    for dtype in ("f8", "c16", "f2"):
        collection = chunked(ones.astype(dtype)) * 2 + 1
        for got, wanted in run_both(collection, runner):
            identical(got, wanted)
    assert runner.kernels.report()["fused"] == 6


def identical(got, wanted):
    assert type(got) is type(wanted)
    if isinstance(wanted, dict):
        assert got.keys() == wanted.keys()
        for name in wanted:
            counts = name == "n" and isinstance(got[name], np.ndarray)
            # a count that all elements share is stored once
            shared = counts and not any(steps(got[name]))
            identical(*(v.copy() if shared else v for v in (got[name], wanted[name])))
    elif isinstance(wanted, np.ma.MaskedArray):
        identical(np.ma.getmaskarray(got), np.ma.getmaskarray(wanted))
        identical(got.filled(7), wanted.filled(7))
    elif not isinstance(wanted, np.ndarray | np.generic) or wanted.dtype.hasobject:
        assert np.all(got == wanted)
    else:
        assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
        assert steps(got) == steps(wanted)
        for part in wanted.dtype.names or ():
            identical(got[part], wanted[part])
        if wanted.dtype.kind in "fc":
            got, wanted = (np.ascontiguousarray(v).view(real_of(v)) for v in (got, wanted))
            number = ~np.isnan(wanted)
            np.testing.assert_array_equal(np.signbit(got[number]), np.signbit(wanted[number]))
        if not wanted.dtype.names:
            np.testing.assert_array_equal(got, wanted)


def real_of(value):
    size = value.dtype.itemsize // (2 if value.dtype.kind == "c" else 1)
    return value.dtype if value.dtype.kind == "f" else np.dtype(f"f{size}")
