"""The numexpr backend runs only with one thread, and never sets the number of threads."""

import threading

import numpy as np
import pytest

from dask_marsched.kernels.backend import UnsupportedError
from dask_marsched.kernels.bound_expression import bind, signature
from dask_marsched.kernels.tuner import Trial
from tests.kernels.expressions import awake, expression

numexpr = pytest.importorskip("numexpr")
numexpr_backend = pytest.importorskip("dask_marsched.kernels.numexpr_backend")

CHAIN, VALUES = expression(lambda x: x * 2 + x, np.arange(100_000.0))


@pytest.fixture(autouse=True)
def one_thread():
    before = numexpr.set_num_threads(1)
    yield
    numexpr.set_num_threads(before)


def prepared(backend):
    return backend.prepare(bind(CHAIN, signature(VALUES)), True)


def test_the_number_of_threads_is_never_set(monkeypatch):
    """BoundExpression it while another thread evaluates may block for ever."""
    run = prepared(numexpr_backend.NumexprBackend())
    for module in (numexpr, numexpr.utils):
        monkeypatch.setattr(module, "set_num_threads", lambda n: pytest.fail("set"))
    np.testing.assert_array_equal(run(VALUES).values[0], VALUES[0] * 3)


def test_it_is_not_used_with_several_threads():
    numexpr.set_num_threads(2)
    with pytest.raises(ImportError, match="runs with 2 threads; NUMEXPR_NUM_THREADS=1"):
        numexpr_backend.NumexprBackend()


def test_it_is_given_up_once_there_are_several_threads(monkeypatch):
    backend = numexpr_backend.NumexprBackend()
    kernels = awake(backend)
    monkeypatch.setattr(Trial, "choose", lambda self, ready: ready or "numpy")
    kernels.evaluate(CHAIN, VALUES)
    kernels.wait()
    kernels.evaluate(CHAIN, VALUES)  # by numexpr, if the first time it was not ready yet
    assert kernels.report()["expressions"][0]["given_up"] == {}
    numexpr.set_num_threads(2)
    with pytest.raises(UnsupportedError, match="2 threads"):
        prepared(backend)
    np.testing.assert_array_equal(kernels.evaluate(CHAIN, VALUES)[0], VALUES[0] * 3)
    (found,) = kernels.report()["expressions"]
    assert found["given_up"] == {"numexpr": "RuntimeError: numexpr runs with 2 threads"}
    kernels.close()


def test_threads_do_not_disturb_each_other():
    """A compiled expression of numexpr holds the addresses of its operands while it runs."""
    run = prepared(numexpr_backend.NumexprBackend())
    wrong, together = [], threading.Barrier(4)

    def work(factor):
        x = VALUES[0] * factor
        together.wait()
        same = [np.array_equal(run([x, 2]).values[0], x * 3) for _ in range(50)]
        wrong.extend(factor for equal in same if not equal)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
