"""Results of kernels are NumPy's for random expressions, dtypes, shapes, layouts and values.

Each expression is compiled once, and evaluated on several sets of values in arrays of the same
layout. ``HYPOTHESIS_PROFILE=kernels pytest tests/kernels/test_exactness.py`` tries 250 expressions
for each property, or ``MARSCHED_EXAMPLES``, on 6 sets of values each, and prints how many of these
a kernel has evaluated.
"""

import os
import platform
import sys
import warnings
from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from dask_marsched.kernels import numpy_backend, proof
from dask_marsched.kernels.backend import UnsupportedError
from dask_marsched.kernels.bound_expression import bind, signature
from dask_marsched.kernels.expression import NotUnderstoodError
from dask_marsched.kernels.numexpr_backend import NumexprBackend
from dask_marsched.kernels.operations import UFUNCS
from tests.kernels.expressions import ARITHMETIC, FLOATS, INTEGERS, cases, refill, steps
from tests.kernels.expressions import expression as expression_of

llvm_backend = pytest.importorskip("dask_marsched.kernels.llvm.backend")

functions = pytest.importorskip("dask_marsched.kernels.llvm.functions")
waves = pytest.importorskip("dask_marsched.kernels.llvm.waves")

MANY = os.environ.get("HYPOTHESIS_PROFILE") == "kernels"
#: Drawing many takes minutes.
pytestmark = [pytest.mark.timeout(0)] if MANY else []
some = settings(
    max_examples=int(os.environ.get("MARSCHED_EXAMPLES", "250" if MANY else "25")),
    deadline=None,
    derandomize=not MANY,
    suppress_health_check=list(HealthCheck),
)
SETS = 6 if MANY else 2
LLVM = llvm_backend.LLVMBackend(None)
#: By property: on how many sets of values a kernel's results were compared, and how many
#: expressions there was no kernel for.
COMPARED: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def counted(request):
    COMPARED.clear()
    yield
    if MANY:
        sys.__stderr__.write(f"\n{request.node.name}: {dict(COMPARED)}\n")


def numpy_results(expression, values):
    """Return NumPy's results, and the floating-point errors that it reports."""
    reported = set()
    names = {"divide by zero": "divide", "overflow": "over", "invalid value": "invalid"}

    def note(error, _):
        reported.add(names[error])

    with np.errstate(divide="call", over="call", invalid="call", call=note):
        return numpy_backend.evaluate(expression, values), reported


def numpys(expression, values):
    """Return NumPy's result; reject the example if NumPy raises."""
    with np.errstate(all="ignore"):
        try:
            return numpy_backend.evaluate(expression, values)[0]
        except (ValueError, TypeError, OverflowError):
            assume(False)


def check(backend, case, *, exact, ulps=0, signs=True):
    """Compare a backend with NumPy on several sets of values, if it has a kernel."""
    expression, values = case
    try:
        found = bind(expression, signature(values))
        run = backend.prepare(found, exact)
    except (NotUnderstoodError, UnsupportedError):
        COMPARED["no kernel"] += 1
        return
    COMPARED["expressions"] += 1
    for seed in range(SETS):
        if seed:
            refill(values, seed)
        compare(run, expression, values, ulps, signs)


def compare(run, expression, values, ulps, signs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            got = run(values)
        except OverflowError:
            return  # a Python integer out of range is left to NumPy
        wanted, reported = numpy_results(expression, values)
    # NumPy evaluates again if a flag was raised, so a kernel may report more errors, never fewer
    assert got.raised >= reported
    if got.doubtful:
        COMPARED["left to NumPy"] += 1
        return
    COMPARED["compared"] += 1
    for mine, theirs in zip(got.values, wanted, strict=True):
        assert type(mine) is type(theirs)
        assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
        assert steps(mine) == steps(theirs)
        same(mine, theirs, ulps, signs)


def same(mine, theirs, ulps, signs):
    if ulps == 0 or theirs.dtype.kind not in "fc":
        np.testing.assert_array_equal(mine, theirs)
        if theirs.dtype.kind == "f" and signs:
            number = ~np.isnan(theirs)
            np.testing.assert_array_equal(np.signbit(mine)[number], np.signbit(theirs)[number])
        return
    mine, theirs = np.atleast_1d(mine), np.atleast_1d(theirs)
    np.testing.assert_array_equal(np.isnan(mine), np.isnan(theirs))
    finite = np.isfinite(theirs)
    np.testing.assert_array_equal(mine[~finite], theirs[~finite])
    off = np.abs(mine[finite] - theirs[finite])
    assert np.all(off <= ulps * np.spacing(np.abs(theirs[finite])))


@pytest.mark.extended
@some
@given(cases())
def test_compiled_expressions_are_numpys_to_the_last_bit(case):
    check(LLVM, case, exact=True)


@pytest.mark.extended
@some
@given(cases(("sum", "prod", "min", "max", "any", "all", "argmin", "argmax"), INTEGERS))
def test_compiled_reductions_of_integers(case):
    expression, values = case
    assume(numpys(expression, values).dtype.kind in "iub")
    check(LLVM, case, exact=True)


@some
@given(cases(("sum", "prod")))
def test_compiled_sums_and_products_are_numpys_to_the_last_bit(case):
    check(LLVM, case, exact=True)


@some
@given(cases((None,), FLOATS))
def test_powers_by_multiplication(case):
    """Powers of 3 and 4 differ by at most 2 units in the last place."""
    _, values = case
    for exponent in (3, 4):
        chain, inputs = expression_of(lambda x, e=exponent: x**e, values[0])
        inputs[1] = exponent
        check(LLVM, (chain, inputs), exact=False, ulps=2)


@pytest.mark.extended
@some
@given(cases((None,), FLOATS))
def test_own_functions(case):
    """Functions that replace NumPy's have its bits."""
    _, values = case
    for op in ("sin", "cos", "hypot", "remainder", "fmod"):
        operands = values[-1:] if op in ("sin", "cos") else [values[-1], values[0]]
        chain, inputs = expression_of(lambda x, *y, o=op: x.call(o, *y), *operands)
        check(LLVM, (chain, inputs), exact=True)


ANGLES = [
    0.0, -0.0, 0.126, np.pi / 2, np.pi, 3e5, -105414350.0, 105414357.0, 5e-324, 1e300, np.inf,
    np.nan,
]  # fmt: skip
DIVISORS = [1.0, -1.0, 0.0, -0.0, 5e-324, 360.0, 1e300, np.inf, -np.inf, np.nan, 2.0**60]


@pytest.mark.parametrize("op", ["sin", "cos", "hypot", "remainder", "floor_divide", "fmod"])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("awkward", [True, False])
def test_own_functions_at_the_bounds_of_their_operands(op, dtype, awkward):
    """With an awkward element, NumPy evaluates a block; without one, our function does."""
    some_, others = ([*ANGLES, -7.0, 0.1], DIVISORS) if awkward else ([0.0, -0.0, -7.5, 3], [2, -3])
    pairs = np.array([(a, b) for a in some_ for b in others]).T
    with np.errstate(over="ignore"):
        pairs = np.repeat(pairs, 40, axis=1).astype(dtype)
    operands = list(pairs if op not in ("sin", "cos") else pairs[:1])
    chain, values = expression_of(lambda x, *y: x.call(op, *y), *operands)
    run = LLVM.prepare(bind(chain, signature(values)), True)
    compare(run, chain, values, 0, True)
    with np.errstate(all="ignore"):
        got, wanted = run(values).values[0], numpy_backend.evaluate(chain, values)[0]
    number = ~np.isnan(wanted)
    np.testing.assert_array_equal(np.signbit(got)[number], np.signbit(wanted)[number])


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
@pytest.mark.parametrize("op", ["sin", "cos", "hypot"])
def test_functions_of_the_c_library_are_tried_out(op, monkeypatch):
    """A function that differs in a few last bits is not used."""
    claim = proof.FunctionClaim(op, np.dtype("f8"))
    operands = [np.linspace(1, 9, 9000), np.linspace(2, 3, 9000)][: UFUNCS[op].nin]
    chain, values = expression_of(lambda x, *y: x.call(op, *y), *operands)
    assert LLVM._holds(claim)
    monkeypatch.setattr(waves, "_SIN", (waves._SIN[0], waves._SIN[1] * (1 + 1e-9)))
    monkeypatch.setattr(functions, "_FAR", 2.0**20)
    other = llvm_backend.LLVMBackend(None)
    assert not other._holds(claim)
    run = other.prepare(bind(chain, signature(values)), True)
    np.testing.assert_array_equal(run(values).values[0], UFUNCS[op](*values))


def test_nan_raises_no_flag():
    """No flag is raised by comparisons with NaN, or by functions of it."""
    hole = np.where(np.arange(4096) % 3 == 0, np.nan, 1.5)
    for op in ("less", "greater_equal", "sin", "cos", "sign", "floor"):
        operands = [hole] if op in ("sin", "cos", "sign", "floor") else [hole, hole[::-1].copy()]
        chain, values = expression_of(lambda x, *y, o=op: x.call(o, *y), *operands)
        found = LLVM.prepare(bind(chain, signature(values)), True)(values)
        assert (op, found.raised, found.doubtful) == (op, set(), False)


@pytest.mark.extended
@some
@given(cases(("min", "max", "any", "all", "argmin", "argmax"), FLOATS))
def test_compiled_selections_of_floats(case):
    check(LLVM, case, exact=True)


@pytest.mark.parametrize("op", ["exp", "log", "arctan2", "power"])
def test_reversed_axes(op):
    """NumPy's loops take other code for negative strides, and NumPy turns some axes round."""
    x = np.random.default_rng(0).uniform(0.1, 3, (40, 300))
    for values in (x[:, ::-1], x[::-1], x[::-1, ::-1]):
        others = [values] if UFUNCS[op].nin == 2 else []
        chain, inputs = expression_of(lambda x, *y: x.call(op, *y) * 2, values, *others)
        check(LLVM, (chain, inputs), exact=True)
    assert COMPARED["compared"]  # axes that are not the innermost


@pytest.mark.parametrize("kind", [complex, np.complex128])
def test_complex_scalars_that_differ_in_signs_of_zeros(kind):
    """Scalars are kept in memory by value, and complex(1, -0.0) equals complex(1, 0.0)."""
    x = np.full(4096, complex(1, -0.0))
    chain, values = expression_of(lambda x: x.call("add", kind(complex(1, 0.0))), x)
    run = LLVM.prepare(bind(chain, signature(values)), True)
    for sign in (0.0, -0.0, 0.0):
        (found,) = run([x, kind(complex(1, sign))]).values
        np.testing.assert_array_equal(np.signbit(found.imag), np.signbit(sign))


@some
@given(st.sampled_from(FLOATS).flatmap(lambda dtype: cases((None,), (dtype,), ARITHMETIC)))
def test_numexpr(case):
    pytest.importorskip("numexpr").set_num_threads(1)
    check(NumexprBackend(), case, exact=True)
