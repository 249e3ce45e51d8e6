"""What backends keep in memory and on disk, and what they leave to NumPy."""

import tracemalloc

import numpy as np
import pytest

from dask_marsched.kernels.backend import UnsupportedError
from dask_marsched.kernels.blocks_backend import BlocksBackend
from dask_marsched.kernels.bound_expression import setting, signature
from dask_marsched.kernels.expression import Expression, Node, Output
from dask_marsched.kernels.scratch import Scratch
from tests.kernels.expressions import expression


def prepared(backend, case, values):
    return backend.prepare(setting(case, signature(values)), False)


def test_chunks_of_many_shapes_share_a_threads_memory():
    backend, runs = BlocksBackend(), []
    case, _ = expression(lambda x: x * 2 + 1, np.zeros(1), reduction="sum")
    base = np.ones(40_000)
    tracemalloc.start()
    try:
        for n in range(20):
            values = [base[: 20_000 + n], 2, 1]
            runs.append(prepared(backend, case, values))
            assert runs[-1](values).values == [3 * values[0].size]
            if not n:
                first = tracemalloc.get_traced_memory()[0]
        # a single buffer is 128 KiB
        assert tracemalloc.get_traced_memory()[0] - first < 1 << 17
    finally:
        tracemalloc.stop()


def test_scratch_arrays_lie_beside_each_other():
    scratch = Scratch()
    dtypes = [np.dtype(bool), np.dtype("c16"), np.dtype("f4")]
    for length in (5, 1000, 7):
        found = scratch.arrays(length, dtypes)
        assert [(a.dtype, a.size) for a in found] == [(dtype, length) for dtype in dtypes]
        for value, array in enumerate(found):
            array[:] = value
        assert [array.tolist() for array in found] == [[v] * length for v in range(3)]
        assert all(a.__array_interface__["data"][0] % 64 == 0 for a in found)
    assert scratch.arrays(5, []) == []


def test_parts_of_complex_numbers_are_discarded_by_numpy_alone():
    # its warning would be told for each block
    nodes = (Node("input", (), 0), Node("cast", (0,), "f8"), Node("negative", (1,)))
    case, values = Expression(nodes, (Output(2),)), [np.ones(20_000, complex)]
    with pytest.raises(UnsupportedError, match="discarded"):
        prepared(BlocksBackend(), case, values)


def test_machine_code_is_freed_when_nobody_runs_it(monkeypatch, tmp_path):
    llvm_backend = pytest.importorskip("dask_marsched.kernels.llvm.backend")
    monkeypatch.setattr(llvm_backend, "_MOST_KERNELS", 2)
    backend, runs = llvm_backend.LLVMBackend(tmp_path), []
    x = np.ones(10_000)
    for count in range(1, 6):
        case, values = expression(lambda x, n=count: sum((x,) * n, x), x)
        assert not backend.at_hand(setting(case, signature(values)), False)
        runs.append((prepared(backend, case, values), values, count + 1))
        assert prepared(backend, case, values) is not runs[-1][0]
    assert len(backend._loaded) == 5
    for run, values, wanted in runs:  # those that are not remembered, too
        assert (run(values).values[0] == wanted).all()
    del run, runs
    assert len(backend._known) == len(backend._loaded) == 2
    # it is loaded again
    case, values = expression(lambda x: x + x, x)
    assert backend.at_hand(setting(case, signature(values)), False)
    assert (prepared(backend, case, values)(values).values[0] == 2).all()
