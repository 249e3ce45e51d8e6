"""The compiler process is started on demand, shared, replaced, and ends when it is idle."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

from dask_marsched.kernels import cache_files, proof
from dask_marsched.kernels.backend import UnsupportedError
from dask_marsched.kernels.bound_expression import bind, signature
from dask_marsched.kernels.expression import Expression, Node, Output
from dask_marsched.kernels.llvm import compiler_process, kernel_files
from tests.kernels.expressions import expression

llvm_backend = pytest.importorskip("dask_marsched.kernels.llvm.backend")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is none")


@pytest.fixture
def directory(tmp_path):
    return cache_files.private(tmp_path / ("long" * 40))  # longer than a socket's path may be


@pytest.fixture(autouse=True)
def briefly(monkeypatch):
    monkeypatch.setattr(compiler_process, "_IDLE", 0.5)
    yield
    ended()


def ended():
    for thread in threading.enumerate():
        if thread.name == "marsched-compiler":
            thread.join(30)
            assert not thread.is_alive()


def processes():
    return [p.pid for p in psutil.Process().children() if "compiler_process" in str(p.cmdline())]


def found(count):
    case, values = expression(lambda x: sum((x,) * count, x), np.ones(10_000))
    return bind(case, signature(values)), values


def key(count):
    made, _ = found(count)
    return made.typed, made.layout, False, ()


def ask(directory, name, wanted):
    address = directory / ("0" * 40 + ".socket")
    return compiler_process.ask(address, directory / f"{name}.o", wanted)


def test_a_worker_does_not_load_llvm(tmp_path):
    program = f"""
import sys
from pathlib import Path
from dask_marsched.kernels.llvm import compiler_process
compiler_process._IDLE = 0.1
from dask_marsched.kernels.llvm import backend as llvm_backend
from tests.kernels.llvm.test_compiler_process import found
backend = llvm_backend.LLVMBackend(Path({str(cache_files.private(tmp_path / "c"))!r}))
bound, values = found(2)
assert not backend.prepares_quickly(bound, False)
assert (backend.prepare(bound, False)(values).values[0] == 3).all()
other = llvm_backend.LLVMBackend(backend._directory)
assert other.prepares_quickly(bound, False)
assert (other.prepare(bound, False)(values).values[0] == 3).all()
carried = [name for name in sys.modules if name.startswith("llvmlite.")]
print(sorted(set(carried) - {{"llvmlite._version"}}))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr


def test_workers_share_a_process_that_leaves_no_files(directory):
    def worker(count):
        content = ask(directory, f"{count:040}", key(count))
        return kernel_files.decoded(content)

    with ThreadPoolExecutor(4) as workers:
        made = list(workers.map(worker, [1, 2, 3, 1, 2, 3]))
        assert len(processes()) == 1
    assert made[:3] == made[3:]
    assert made[0].code != made[1].code
    kept = kernel_files.decoded(cache_files.read(directory / f"{1:040}.o"))
    assert kept == made[0]
    ended()
    assert processes() == []
    assert {path.suffix for path in directory.iterdir()} == {".o", ".lock"}


def test_a_killed_process_is_replaced(directory):
    first = ask(directory, "1" * 40, key(1))
    (killed,) = processes()
    os.kill(killed, 9)
    second = ask(directory, "2" * 40, key(1))
    assert first == second
    assert killed not in processes()


def test_an_error_in_the_process_is_raised_in_the_worker(directory):
    with pytest.raises(RuntimeError, match="AttributeError"):
        ask(directory, "1" * 40, (1, 2, 3, 4, 5))
    assert ask(directory, "2" * 40, key(1)) is not None


def test_an_unsupported_kernel_is_remembered_on_disk(directory):
    backend = llvm_backend.LLVMBackend(directory)
    nodes = (Node("input", (), 0), Node("cast", (0,), "u8"), Node("invert", (1,)))
    made = bind(Expression(nodes, (Output(2),)), signature([np.ones(10_000)]))
    for _ in range(2):
        with pytest.raises(UnsupportedError):
            backend.prepare(made, False)
        assert backend.prepares_quickly(made, False)
        backend = llvm_backend.LLVMBackend(directory)


@pytest.mark.parametrize("program", ["/nowhere/python", "/bin/false"])
def test_without_a_process_the_worker_compiles(directory, monkeypatch, program):
    monkeypatch.setattr(sys, "executable", program)
    backend = llvm_backend.LLVMBackend(directory)
    made, values = found(3)
    assert ask(directory, "1" * 40, key(3)) is None
    assert (backend.prepare(made, False)(values).values[0] == 4).all()
    assert backend.prepares_quickly(made, False)
    assert "_compiler" in vars(backend)


def test_workers_that_need_the_same_proof_make_it_once(directory, monkeypatch):
    claim = proof.ReductionClaim("sum", np.dtype("f8"), "rows", False)
    one, other = llvm_backend.LLVMBackend(directory), llvm_backend.LLVMBackend(directory)
    proofs, answers, arrived = [], [], threading.Event()
    second = threading.Thread(target=lambda: answers.append(other._holds(claim)))

    class Claimed:
        def __init__(self, path):
            self._claimed = cache_files.claimed(path)

        def __enter__(self):
            if threading.current_thread() is second:
                arrived.set()
            return self._claimed.__enter__()

        def __exit__(self, *error):
            return self._claimed.__exit__(*error)

    def holds(claim, prepare):
        proofs.append(claim)
        if threading.current_thread() is second:
            arrived.set()
        else:
            second.start()
            assert arrived.wait(30)
        return True

    monkeypatch.setattr(llvm_backend.proof, "holds", holds)
    files = SimpleNamespace(**{**vars(cache_files), "claimed": Claimed})
    monkeypatch.setattr(llvm_backend, "cache_files", files)
    assert one._holds(claim)
    second.join(30)
    assert (proofs, answers) == ([claim], [True])
