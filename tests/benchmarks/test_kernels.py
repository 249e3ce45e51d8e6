"""The benchmark of kernels: its expressions, their tasks, and a comparison."""

import numpy as np
import pytest

from benchmarks.kernels import comparison


@pytest.mark.parametrize("name", comparison.EXPRESSIONS)
def test_a_chunk_is_evaluated_as_one(name):
    shape = (128, 1024)
    chunk = comparison.chunk(name, "elementwise", "float64", 1)
    assert chunk.run(comparison.as_it_is).shape == shape
    found = comparison.chunk(name, "mean", "float64", 1).run(comparison.as_it_is)
    assert found["n"] == np.prod(shape)


def test_a_comparison():
    pytest.importorskip("llvmlite")
    shown = []
    found = comparison.run(
        shown.append, names=["cubic"], sizes=[1], dtypes=["float64"], forms=["elementwise"]
    )
    assert found == shown
    assert found[0].stock > 0
    assert found[0].ours > 0
    # a result of 1 MiB, and at least one temporary beside it where NumPy evaluates it
    assert found[0].stock_temporaries >= 1
    assert comparison.cells(found)[1][0] == "cubic"
    assert comparison.summary_cells(found)[1][0] == "elementwise"
