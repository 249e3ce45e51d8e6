"""Which backend is used, and what backends keep in memory."""

import ctypes
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from dask_marsched.kernels import backends
from dask_marsched.kernels.bound_expression import bind, signature
from dask_marsched.kernels.llvm.backend import Scratch
from tests.kernels.expressions import expression


def prepared(backend, case, values):
    return backend.prepare(bind(case, signature(values)), False)


def test_scratch_memory_is_aligned_and_reused_until_more_is_needed():
    scratch = Scratch()
    first = scratch.address(1000)
    assert first % 64 == 0
    assert scratch.address(5) == scratch.address(1000) == first
    larger = scratch.address(100_000)
    np.frombuffer((ctypes.c_uint8 * 100_000).from_address(larger), "u1")[:] = 7
    assert larger % 64 == 0
    assert scratch.address(100_000) == larger


def test_each_thread_has_its_own_scratch_memory():
    scratch, both = Scratch(), threading.Barrier(2)

    def address(_):
        both.wait()
        return scratch.address(1000)

    with ThreadPoolExecutor(2) as threads:
        assert len(set(threads.map(address, range(2)))) == 2


def test_numexpr_is_asked_for_only_where_llvm_is_missing(monkeypatch, tmp_path):
    pytest.importorskip("numexpr").set_num_threads(1)
    pytest.importorskip("llvmlite")
    found, missing = backends.make(tmp_path)
    assert (found.name, missing) == ("llvm", {})
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    found, missing = backends.make(tmp_path)
    assert found.name == "numexpr"
    assert missing == {"llvm": "ModuleNotFoundError: No module named 'llvmlite'"}


def test_machine_code_is_freed_when_nobody_runs_it(monkeypatch, tmp_path):
    llvm_backend = pytest.importorskip("dask_marsched.kernels.llvm.backend")
    monkeypatch.setattr(llvm_backend, "_MOST_KERNELS", 2)
    backend, runs = llvm_backend.LLVMBackend(tmp_path), []
    x = np.ones(10_000)
    for count in range(1, 6):
        case, values = expression(lambda x, n=count: sum((x,) * n, x), x)
        assert not backend.prepares_quickly(bind(case, signature(values)), False)
        runs.append((prepared(backend, case, values), values, count + 1))
        assert prepared(backend, case, values) is not runs[-1][0]
    assert len(backend._loaded) == 5
    for run, values, wanted in runs:  # those that are not remembered, too
        assert (run(values).values[0] == wanted).all()
    del run, runs
    assert len(backend._known) == len(backend._loaded) == 2
    # it is loaded again
    case, values = expression(lambda x: x + x, x)
    assert backend.prepares_quickly(bind(case, signature(values)), False)
    assert (prepared(backend, case, values)(values).values[0] == 2).all()
