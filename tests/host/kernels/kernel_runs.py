"""Runs the tasks of collections as in Dask and by kernels."""

import contextlib
import warnings

import dask
import pytest
from dask._task_spec import convert_legacy_graph

from dask_marsched.host.kernels.task_runner import KernelRunner
from dask_marsched.kernels.evaluator import Kernels
from dask_marsched.kernels.tuner import Trial

llvm_backend = pytest.importorskip("dask_marsched.kernels.llvm.backend")
LLVM = llvm_backend.LLVMBackend(None)


class Inline:
    """Compiles in the calling thread, so that the first chunk has a kernel."""

    def submit(self, function, *args):
        function(*args)


@contextlib.contextmanager
def a_runner(monkeypatch, backend=LLVM):
    """Provide a runner that uses the backend whenever it can, and check that it never failed."""

    def compiled(self, ready):
        return ready or "numpy"

    monkeypatch.setattr(Trial, "choose", compiled)
    kernels = Kernels(backend)
    kernels._compiler = Inline()
    failures = []
    yield KernelRunner(kernels, lambda where, error: failures.append((where, error)))
    assert failures == []
    assert kernels.failures.exceptions == {}


def run_both(collection, runner):
    """Run every task of a collection by kernels and as in Dask; return pairs of results."""
    (optimized,) = dask.optimize(collection)
    dsk = convert_legacy_graph(dict(optimized.__dask_graph__()))
    results = {}

    def result(key):
        if key not in results:
            task = dsk[key]
            values = {name: result(name) for name in task.dependencies}
            pairs.append(both(task, values, runner))
            results[key] = pairs[-1][1]
        return results[key]

    pairs = []
    for key in dsk:
        result(key)
    return pairs


def both(task, values, runner):
    """Return a task's results by kernels and as in Dask; the warnings must be the same."""
    wanted, expected = with_warnings(task, values)
    got, warned = with_warnings(runner.wrap(task), values)
    assert warned == expected
    return got, wanted


def with_warnings(task, values):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = task(values)
    return result, sorted(str(w.message) for w in caught)
