"""Reductions of floats by kernels are NumPy's to the last bit, along any axes."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_marsched.kernels import numpy_backend, proof
from dask_marsched.kernels.backend import Results, UnsupportedError
from dask_marsched.kernels.bound_expression import bind, signature
from dask_marsched.kernels.expression import Expression, Node, Output
from tests.kernels.expressions import expression

llvm_backend = pytest.importorskip("dask_marsched.kernels.llvm.backend")
LLVM = llvm_backend.LLVMBackend(None)
KINDS = ("sum", "prod", "min", "max")
FEW = settings(max_examples=150, deadline=None, derandomize=True)

#: Around where NumPy's halves, lanes and buffers begin and end.
lengths = st.one_of(
    st.integers(1, 300),
    st.builds(
        lambda n, unit, off: max(1, n * unit + off),
        st.integers(1, 40),
        st.sampled_from([8, 128, 1024]),
        st.integers(-9, 9),
    ),
    st.builds(lambda n, off: n * 8192 + off, st.integers(1, 3), st.integers(-9, 9)),
)


def same(chain, values, exact=True):
    """Compare a kernel with NumPy; return False if the kernel leaves the result to NumPy."""
    run = LLVM.prepare(bind(chain, signature(values)), exact)
    got = run(values)
    with np.errstate(all="ignore"):
        (wanted,) = numpy_backend.evaluate(chain, values)
    if got.doubtful:
        return False
    (found,) = got.values
    assert (type(found), found.shape, found.dtype) == (type(wanted), wanted.shape, wanted.dtype)
    number = ~np.isnan(wanted)
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(np.signbit(found)[number], np.signbit(wanted)[number])
    return True


def terms(random, shape, kind, dtype):
    if kind == "prod":
        return (random.choice([-1, 1], shape) * 2 ** random.normal(0, 0.1, shape)).astype(dtype)
    return (random.normal(0, 1, shape) * 10.0 ** random.integers(-3, 4, shape)).astype(dtype)


@pytest.mark.extended
@FEW
@given(
    st.data(), lengths, st.sampled_from(KINDS), st.sampled_from(["f4", "f8"]),
    st.sampled_from(["whole", "rows", "columns", "outer and inner", "middle"]),
    st.sampled_from(["C", "F", "gaps", "reversed"]),
)  # fmt: skip
def test_any_length_along_any_axes(data, length, kind, dtype, along, layout):
    few = data.draw(st.integers(1, 5))
    shape, axes = {
        "whole": ((few, length), None),
        "rows": ((few, length), (1,)),
        "columns": ((length, few), (0,)),
        "outer and inner": ((few, 3, length), (0, 2)),
        "middle": ((few, length, 3), (1,)),
    }[along]
    random = np.random.default_rng(length)
    wide = (*shape[:-1], shape[-1] + 1)
    x = terms(random, shape, kind, dtype)
    x = {
        "C": lambda: x,
        "F": lambda: np.asfortranarray(x),
        "gaps": lambda: terms(random, wide, kind, dtype)[..., :-1],
        "reversed": lambda: x[::-1, ..., ::-1],
    }[layout]()
    chain, values = expression(
        lambda x, y: (x * y).call("negative"), x, np.ones((), dtype), reduction=kind, axes=axes
    )
    assert same(chain, values)


BOTH = [pytest.param("f4", marks=pytest.mark.extended), "f8"]


@pytest.mark.parametrize("dtype", BOTH)
def test_every_short_length(dtype):
    x = np.random.default_rng(0).normal(0, 1, 2200).astype(dtype)
    for length in range(1, x.size):
        assert same(*expression(lambda x: x.call("negative"), x[:length], reduction="sum"))


@pytest.mark.extended
def test_terms_that_are_computed_by_numpys_loops():
    random = np.random.default_rng(0)
    for length in (1, 129, 1025, 3003, 20_000):
        x = random.random((3, length)) + 0.5
        for axes in (None, (0,), (1,)):
            for kind in KINDS:
                chain, values = expression(
                    lambda x: x.call("exp") + x.call("sin") * x**3, x, reduction=kind, axes=axes
                )
                assert same(chain, values)


@pytest.mark.extended
@FEW
@given(lengths, st.sampled_from([("i8", "f8"), ("i4", "f4"), ("f4", "f8"), ("?", "f4")]))
def test_sums_of_converted_values(length, dtypes):
    """NumPy converts and adds up 8192 values at a time."""
    source, dtype = dtypes
    random = np.random.default_rng(length)
    most = 2.0 ** (8 * np.dtype(source).itemsize - 2)
    x = (random.uniform(-most, most, (3, length))).astype(source)
    for axes in (None, (0,), (1,)):
        chain, values = expression(
            lambda x: x.call("maximum", x), x, reduction="sum", dtype=dtype, axes=axes
        )
        assert same(chain, values)


def test_a_count_beside_a_sum_has_buffers_of_its_own():
    """A sum of booleans is converted to integers, the sum of floats beside it is not converted."""
    x = np.random.default_rng(2).random(19_200)
    nodes = (Node("input", (), 0), Node("negative", (0,)), Node("isfinite", (1,)))
    for outputs in itertools.permutations([Output(1, "sum"), Output(2, "sum"), Output(1, "min")]):
        chain = Expression(nodes, outputs)
        found = LLVM.prepare(bind(chain, signature([x])), True)([x]).values
        assert found == numpy_backend.evaluate(chain, [x])


def test_numpy_evaluates_with_another_buffer_size():
    chain, values = expression(
        lambda x: x.call("maximum", x), np.arange(20_000) ** 4, reduction="sum", dtype="f8"
    )
    before = np.getbufsize()
    run = LLVM.prepare(bind(chain, signature(values)), True)
    np.setbufsize(4096)
    try:
        assert run(values).doubtful
    finally:
        np.setbufsize(before)
    assert not run(values).doubtful


@pytest.mark.parametrize("kind", ["min", "max"])
@pytest.mark.parametrize("axes", [None, (0,), (1,)])
def test_numpy_decides_between_zeros_of_both_signs(kind, axes):
    x = np.full((4, 3000), 1.0 if kind == "min" else -1.0)
    x[1, 5] = x[2, 5] = 0.0
    chain, values = expression(lambda x: x * 1, x, reduction=kind, axes=axes)
    assert same(chain, values)
    x[2, 5] = x[1, 2999] = -0.0
    assert not same(chain, values)
    x[3] = -1.0 if kind == "min" else 1.0  # less than either
    assert same(chain, values) == (axes != (1,))
    x[...] = np.nan
    assert same(chain, values)


@pytest.mark.parametrize(
    "awkward",
    [
        pytest.param([np.inf, 1.0], marks=pytest.mark.extended),
        [np.inf, -np.inf, 1.0],
        [np.nan, 1.0],
        [-0.0],
        pytest.param([5e-324, -5e-324, 1e-310], marks=pytest.mark.extended),
        [1e308, -1e308, 1.0],
    ],
)
def test_awkward_terms(awkward):
    for length in (5, 100, 1024, 3001):
        x = np.random.default_rng(0).choice(awkward, (3, length))
        for kind in KINDS:
            for axes in (None, (0,), (1,)):
                chain, values = expression(lambda x: x * 1, x, reduction=kind, axes=axes)
                assert same(chain, values)


def test_numpy_reduces_arrays_with_gaps():
    x = np.ones((50, 300))[:, ::2]
    chain, values = expression(lambda x: x, x, reduction="sum")
    with pytest.raises(UnsupportedError, match="gaps"):
        LLVM.prepare(bind(chain, signature(values)), True)
    assert same(*expression(lambda x: x, np.ones((50, 300)), reduction="sum"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["rows", "columns"])
@pytest.mark.parametrize("dtype", BOTH)
def test_claims_are_true(kind, mode, dtype):
    claim = proof.ReductionClaim(kind, np.dtype(dtype), mode, False)
    assert proof.holds(claim, lambda found: LLVM._prepare(found, True))


def test_another_order_disproves_a_claim():
    def backwards(_):
        return lambda values: Results([np.negative(values[0])[::-1].sum()], set())

    assert not proof.holds(proof.ReductionClaim("sum", np.dtype("f8"), "rows", False), backwards)


def test_a_disproved_claim_is_remembered_on_disk(tmp_path, monkeypatch):
    chain, values = expression(lambda x: x * 2, np.ones(9000), reduction="sum")
    found = bind(chain, signature(values))
    tried = []
    monkeypatch.setattr(proof, "holds", lambda claim, prepare: tried.append(claim))
    for _ in range(2):
        for backend in (one := llvm_backend.LLVMBackend(tmp_path / "."), one):
            with pytest.raises(UnsupportedError, match="as this NumPy does it"):
                backend.prepare(found, True)
    assert len(tried) == 1
    assert one.prepare(found, False)(values).values == [18000.0]
