"""The order of results in memory is NumPy's."""

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_marsched.kernels import numpy_backend
from dask_marsched.kernels.bound_expression import bind, signature
from dask_marsched.kernels.expression import Expression, Node, NotUnderstoodError, Output
from tests.kernels.expressions import Building, expression, of, steps

RANDOM = np.random.default_rng(0)
MANY = int(os.environ.get("MARSCHED_EXAMPLES", "150"))
ROW, COLUMN = RANDOM.random((1, 30)), RANDOM.random((20, 1))
F = np.asfortranarray(RANDOM.random((20, 30)))
C = RANDOM.random((20, 30))
#: Functions, and the arrays that they are applied to.
WRITTEN = {
    "row + column, then F": (lambda r, c, f: (r + c) * f, (ROW, COLUMN, F)),
    "F first": (lambda r, c, f: r * f + c, (ROW, COLUMN, F)),
    "row, column": (lambda r, c: r + c, (ROW, COLUMN)),
    "C and F": (lambda c, f: c * f, (C, F)),
    "F and F": (lambda a, b: a * b, (F, F)),
    "F reversed": (lambda a: a + 1, (F[::-1, ::-1],)),
    "where": (lambda m, r, f: m.call("where", r, f), (C > 0.5, ROW, F)),
    "where of F": (lambda m, r, f: m.call("where", r, f), (F > 0.5, ROW, F)),
    "clip": (lambda f, low, high: f.call("clip", low, high), (F, 0.25, 0.5)),
    "astype": (lambda f, r: f.call("cast", param="<f4") + r, (F, ROW)),
    "astype of rows": (lambda a: a.call("cast", param="<f4"), (np.broadcast_to(ROW, C.shape),)),
    "rows": (lambda a: a + 1, (np.broadcast_to(ROW, C.shape),)),
    "power": (lambda r, c, f: (r + c) ** 2 / f, (ROW, COLUMN, F)),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_the_order_of_some_expressions(name):
    function, arrays = WRITTEN[name]
    agrees(*expression(function, *arrays))


@st.composite
def arrays(draw, shape):
    """Draw an array of any layout that can be broadcast to a shape."""
    own = tuple(draw(st.sampled_from([n, n, n, 1])) for n in shape)
    own = own[draw(st.sampled_from([0, 0, 0, 1])) :]
    axes = draw(st.permutations(range(len(own))))
    steps = [draw(st.sampled_from([1, 1, 1, -1, 2, 0])) for _ in own]
    full = np.ones([own[axis] * (abs(steps[axis]) or 1) for axis in axes], draw(_DTYPES))
    lying = full.transpose(np.argsort(axes))
    lying = lying[tuple(slice(None, None, step) if step else slice(1) for step in steps)]
    return np.broadcast_to(lying, own)


_OPERATIONS = ["negative", "add", "less", "where", "cast", "number", "enforce"]
_DTYPES = st.sampled_from(["f4", "f8", "i2"])


@st.composite
def chains(draw):
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=2, max_size=4)))
    building = Building()
    terms = [building.input(draw(arrays(shape))) for _ in range(draw(st.integers(1, 3)))]
    terms.append(building.input(np.broadcast_to(draw(arrays(shape)), shape)))
    for _ in range(draw(st.integers(1, 5))):
        a, b, c = (draw(st.sampled_from(terms[-4:])) for _ in range(3))
        op = draw(st.sampled_from(_OPERATIONS))
        others = {"add": (b,), "less": (b,), "where": (b, c)}.get(op, ())
        if op == "number":
            terms.append(a * 2)
        elif op == "enforce":  # of a result, as Dask does
            terms.append((a + b).call(op, param="<f8"))
        else:
            terms.append(a.call(op, *others, param="<f4" if op == "cast" else None))
    return of(building, terms[-1]), building.values


@settings(max_examples=MANY, deadline=None, derandomize=MANY == 150)
@given(chains())
def test_the_order_of_random_expressions(case):
    agrees(*case)


def agrees(chain, values):
    try:
        made = bind(chain, signature(values))
    except NotUnderstoodError:
        return
    with np.errstate(all="ignore"):
        (wanted,) = numpy_backend.evaluate(chain, values)
    (got,) = made.allocate()
    assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
    assert steps(got) == steps(wanted)


def test_results_of_different_orders_are_not_fused():
    nodes = (Node("input", (), 0), Node("input", (), 1), Node("add", (0, 1)), Node("input", (), 2),
             Node("multiply", (2, 3)), Node("multiply", (3, 3)))  # fmt: skip
    both = Expression(nodes, (Output(4, "sum"), Output(5, "sum")), (0,))
    with pytest.raises(NotUnderstoodError, match="different orders"):
        bind(both, signature([ROW, COLUMN, F]))
    same = Expression(nodes, (Output(2, "sum"), Output(4, "sum")), (0,))
    assert bind(same, signature([ROW, COLUMN, F])).order == (0, 1)
