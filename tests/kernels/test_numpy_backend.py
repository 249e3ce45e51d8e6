"""NumPy computes nothing twice, and uses the memory of temporaries."""

import itertools
import math
import tracemalloc

import numpy as np
import pytest

from dask_marsched.kernels import numpy_backend
from tests.kernels.expressions import expression


def test_known_values_are_not_computed_again():
    case, values = expression(lambda x: x * 2 + 1, np.arange(16384.0), reduction="sum")
    (total,) = case.outputs
    known = {total.node: None}
    numpy_backend.evaluate(case, values, known)
    np.testing.assert_array_equal(known[total.node], values[0] * 2 + 1)
    known[total.node] = np.ones(3)
    assert numpy_backend.evaluate(case, [None, 2, 1], known) == [3.0]


FORMS = {
    "chain": lambda x, y: ((x * 2 + 1) ** 2 - y) / (y * y) - 3.5,
    "second operand": lambda x, y: y / (x - 1.5) - (y - x) ** 2,
    "twice": lambda x, y: (z := x + y) * z + z,
    "cube": lambda x, y: (x + y) ** 3 + 1,
}
LAYOUTS = {
    "contiguous": lambda x: x,
    "columns first": np.asfortranarray,
    "turned": lambda x: x[::-1],
    "a row": lambda x: x[:1].copy(),
    "singles": lambda x: x.astype("f4"),
}


@pytest.mark.parametrize("layouts", list(itertools.product(LAYOUTS, repeat=2)), ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_results_in_the_memory_of_operands_are_the_same(form, layouts, monkeypatch):
    rng = np.random.default_rng(1)
    x, y = (LAYOUTS[layout](rng.normal(size=(8, 8192))) for layout in layouts)
    inputs = x.copy(), y.copy()
    case, values = expression(FORMS[form], x, y)
    (found,) = numpy_backend.evaluate(case, values)
    monkeypatch.setattr(numpy_backend, "_LARGE", math.inf)
    (wanted,) = numpy_backend.evaluate(case, values)
    assert (found.dtype, found.strides) == (wanted.dtype, wanted.strides)
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(x, inputs[0])
    np.testing.assert_array_equal(y, inputs[1])


def test_temporaries_share_memory():
    x = np.ones(1 << 20)
    case, values = expression(lambda x: ((x * 2 + 1) ** 2 - 3) / 7, x)
    tracemalloc.start()
    try:
        numpy_backend.evaluate(case, values)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 1.1 * x.nbytes
