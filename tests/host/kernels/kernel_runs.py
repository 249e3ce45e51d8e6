"""Runs the tasks of collections as in Dask and by kernels."""

import contextlib
import tracemalloc
import warnings

import dask
import pytest
from dask._task_spec import convert_legacy_graph

from dask_marsched.host.kernels.task_runner import KernelRunner
from dask_marsched.kernels.tuner import Trial
from tests.kernels.expressions import awake

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
    kernels = awake(backend)
    kernels._compiler = Inline()
    failures = []
    yield KernelRunner(kernels, lambda where, error: failures.append((where, error)))
    assert failures == []
    assert kernels.failures.exceptions == {}


def run_both(collection, runner):
    """Run every task of a collection by kernels and as in Dask; return pairs of results."""
    (optimized,) = dask.optimize(collection)
    pairs = []

    def run(task, values):
        pairs.append(both(task, values, runner))
        return pairs[-1][1]

    run_graph(optimized, run)
    return pairs


def run_graph(collection, run):
    """Run every task of a collection by a function of the task and its inputs."""
    dsk = convert_legacy_graph(dict(collection.__dask_graph__()))
    results = {}

    def result(key):
        if key not in results:
            values = {name: result(name) for name in dsk[key].dependencies}
            results[key] = run(dsk[key], values)
        return results[key]

    for key in dsk:
        result(key)


def both(task, values, runner):
    """Return a task's results by kernels and as in Dask; the warnings must be the same."""
    wanted, expected = with_warnings(task, values)
    got, warned = with_warnings(runner.wrap(task), values)
    assert warned == expected
    return got, wanted


def peak_memory(run, *args):
    """Return the most bytes that a call has allocated at once."""
    tracemalloc.start()
    try:
        run(*args)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def with_warnings(task, values):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = task(values)
    return result, sorted(str(w.message) for w in caught)
