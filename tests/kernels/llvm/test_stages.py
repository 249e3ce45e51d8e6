"""Common expressions are one compiled loop; others are split where flags would be lost."""

import numpy as np
import pytest

from dask_marsched.kernels.expression import typed
from tests.kernels.expressions import expression

stages = pytest.importorskip("dask_marsched.kernels.llvm.stages")


def sqrt(x):
    return x.call("sqrt")


def where(condition, x, y):
    return condition.call("where", x, y)


ONE_LOOP = {
    "line": lambda x, y, i: x * 2.0 + 1.5,
    "length": lambda x, y, i: sqrt(x**2 + y**2),
    "masked": lambda x, y, i: where(x.call("greater", 0.5), x, np.nan),
    "masked result": lambda x, y, i: where((z := x * 2.0).call("greater", 0.5), z, np.nan),
    "filled": lambda x, y, i: where((z := x / y).call("isnan"), 0.0, z),
    "clipped": lambda x, y, i: (x / y).call("clip", 0.0, 1.0),
    "compared": lambda x, y, i: (x - y).call("less", x + y).call("bitwise_and", x.call("isfinite")),
    "unpacked": lambda x, y, i: i.call("cast", param="f4") * 0.01 + 273.0,
    "binned": lambda x, y, i: ((x - 1.0) / 0.5).call("cast", param="i4") + 1,
    "reciprocal": lambda x, y, i: (x**-1).call("isnan"),
    "compared integers": lambda x, y, i: (i * 2).call("less", 9),
}
TWO_LOOPS = {
    "branch": lambda x, y, i: where(x.call("greater", 0.5), (x / y).call("negative"), np.nan),
    # the inner branch is computed apart for both
    "branches": lambda x, y, i: where(
        x.call("greater", 0.5), where(y.call("less", 0), x / y, y), y
    ),
    "condition": lambda x, y, i: where(sqrt(x).call("cast", param="?"), x, y),
    "integers": lambda x, y, i: i.call("cast", param="f8").call("cast", param="i2"),
    "reciprocal": lambda x, y, i: (i.call("cast", param="f8") ** -1).call("isnan"),
    "itself": lambda x, y, i: (z := x / y).call("less", z),
}


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize(
    ("name", "last"), [*((n, 0) for n in ONE_LOOP), *((n, 2) for n in TWO_LOOPS)]
)
def test_loops(name, last, dtype):
    arrays = np.ones(9, dtype), np.ones(9, dtype), np.ones(9, "i4")
    case, values = expression((TWO_LOOPS if last else ONE_LOOP)[name], *arrays)
    types = tuple(getattr(value, "dtype", type(value)) for value in values)
    assert stages.stages(typed(case, types), True).last == last
