"""Kernels evaluate by the faster of NumPy and a backend: choice, failures, warnings, limits."""

import itertools
import threading
import warnings

import numpy as np
import pytest

from dask_marsched.kernels import numpy_backend
from dask_marsched.kernels.backend import Results, UnsupportedError
from dask_marsched.kernels.evaluator import LEAST_ELEMENTS, Kernels, Means
from dask_marsched.kernels.expression import NotUnderstoodError
from dask_marsched.kernels.tuner import SAMPLES
from tests.kernels.expressions import awake, expression

CHAIN, CHUNK = expression(lambda x: x * 2 + 1, np.arange(float(2 * LEAST_ELEMENTS)))
CASE = (CHAIN, CHUNK)
DIVISION, _ = expression(lambda x: (x / 0.0) + 1, np.zeros(2 * LEAST_ELEMENTS))


class Fake:
    """A backend with a given duration, raised flags and error."""

    def __init__(self, name="fake", clock=None, seconds=0.0, raised=(), error=None, gate=None):
        self.name, self.clock, self.seconds = name, clock, seconds
        self.raised, self.error, self.gate, self.runs = set(raised), error, gate, 0
        self.compiled = False

    def prepares_quickly(self, bound, exact):
        return self.compiled

    def prepare(self, bound, exact):
        if self.gate is not None:
            self.gate.wait()
        if isinstance(self.error, UnsupportedError):
            raise self.error

        def run(values):
            self.runs += 1
            if self.error is not None:
                raise self.error
            self.clock.now += self.seconds
            with np.errstate(all="ignore"):
                return Results(numpy_backend.evaluate(bound.expression, values), self.raised)

        return run


class Clock:
    """A clock that moves half a second when it is read, and when a backend moves it."""

    def __init__(self):
        self.now = 0.0
        self.calls = itertools.count()

    def __call__(self):
        self.now += 0.5
        return self.now


def compiled(kernels):
    """Wait until everything is compiled."""
    kernels._compiler.submit(int).result()


def evaluate(kernels, chunks=12, case=CHAIN, values=CHUNK):
    kernels.evaluate(case, values)
    compiled(kernels)
    return [kernels.evaluate(case, values)[0] for _ in range(chunks)]


def test_a_faster_backend_is_used_and_saved_time_is_reported():
    clock = Clock()
    fake = Fake(clock=clock, seconds=-0.4)
    kernels = awake(fake, clock=clock)
    results = evaluate(kernels)
    for result in results:
        np.testing.assert_array_equal(result, CHUNK[0] * 2 + 1)
    report = kernels.report()
    assert fake.runs >= 9
    (found,) = report["expressions"]
    assert found["backend"] == "fake"
    assert found["text"] == "((a * b) + c)"
    # The first chunk may have been evaluated before NumPy's time was known.
    assert 0.4 * (fake.runs - 1) - 1e-9 <= report["saved"] <= 0.4 * fake.runs + 1e-9
    assert report["fused"] == fake.runs


def test_an_expression_is_compiled_after_numpy_has_spent_enough():
    clock = Clock()  # half a second for each chunk
    fake = Fake(clock=clock)
    kernels = awake(fake, clock=clock, patience=1.2)
    runs = []
    for _ in range(5):
        kernels.evaluate(CHAIN, CHUNK)
        compiled(kernels)
        runs.append(fake.runs)
    assert runs[:4] == [0, 0, 0, 1]


def test_numpy_evaluates_while_the_backend_compiles():
    gate, clock = threading.Event(), Clock()
    fake = Fake(clock=clock, gate=gate)
    kernels = awake(fake, clock=clock)
    for _ in range(3):
        kernels.evaluate(CHAIN, CHUNK)
    assert fake.runs == 0
    gate.set()
    compiled(kernels)
    kernels.evaluate(CHAIN, CHUNK)
    assert fake.runs == 1


def test_no_backend_is_asked_for_before_numpy_has_spent_enough(tmp_path):
    clock, asked = Clock(), []
    fake = Fake(clock=clock, seconds=-0.4)

    def late():
        asked.append(True)
        return Means(fake, tmp_path, "")

    kernels = Kernels(late, clock=clock, patience=2.0)
    for case in (CHAIN, DIVISION, CHAIN):
        kernels.evaluate(case, [np.ones(2 * LEAST_ELEMENTS), 2, 1])  # half a second each
    assert not asked
    assert not kernels._compiler._threads
    kernels.evaluate(*CASE)
    compiled(kernels)  # it is awake
    assert asked == [True]
    assert kernels.report()["backends"] == ["fake"]
    assert not fake.runs  # not two seconds for a single one
    kernels.evaluate(*CASE)
    compiled(kernels)
    evaluate(kernels)
    assert fake.runs
    assert asked == [True]
    kernels.close()  # this writes the measurements
    assert len(list(tmp_path.iterdir())) == 1


def test_a_failing_backend_is_given_up_and_reported(caplog):
    kernels = awake(Fake(error=RuntimeError("no luck")))
    results = evaluate(kernels)
    np.testing.assert_array_equal(results[0], CHUNK[0] * 2 + 1)
    report = kernels.report()
    assert report["expressions"][0]["given_up"] == {"fake": "RuntimeError: no luck"}
    assert report["exceptions"] == {"kernel.fake": 1}
    assert sum("gives up" in r.getMessage() for r in caplog.records) == 1


def test_an_unsupported_expression_is_no_failure():
    kernels = awake(Fake(error=UnsupportedError("not that")))
    evaluate(kernels)
    assert kernels.report()["exceptions"] == {}
    assert kernels.report()["expressions"][0]["given_up"] == {}


def test_numpy_warns_and_raises_when_a_flag_was_raised():
    clock = Clock()
    fake = Fake(clock=clock, seconds=-0.4, raised={"divide"})
    kernels = awake(fake, clock=clock)
    values = [np.ones(2 * LEAST_ELEMENTS), 0.0, 1]
    with np.errstate(all="ignore"):
        evaluate(kernels, 1, DIVISION, values)
    with pytest.warns(RuntimeWarning, match="divide by zero encountered in divide"):
        kernels.evaluate(DIVISION, values)
    with np.errstate(divide="raise"), pytest.raises(FloatingPointError, match="divide by zero"):
        kernels.evaluate(DIVISION, values)
    with np.errstate(divide="ignore"), warnings.catch_warnings():
        warnings.simplefilter("error")
        kernels.evaluate(DIVISION, values)


@pytest.mark.parametrize(
    "value",
    [np.ma.masked_array(CHUNK[0]), CHUNK[0].astype(object), np.zeros(0), np.float64(1),
     CHUNK[0].astype("f8").view(np.recarray), CHUNK[0].astype(">f8"), 3],
    ids=["masked", "object", "empty", "scalar", "subclass", "byte order", "number"],
)  # fmt: skip
def test_unsupported_inputs_are_left_to_the_caller(value):
    kernels = awake(Fake(error=AssertionError("not to be asked")))
    for _ in range(2):
        with pytest.raises(NotUnderstoodError):
            kernels.evaluate(CHAIN, [value, 2, 1])
    compiled(kernels)
    assert kernels.report()["runs"] == 0


def test_small_chunks_are_left_to_numpy():
    kernels = awake(Fake(error=AssertionError("not to be asked")))
    np.testing.assert_array_equal(
        kernels.evaluate(CHAIN, [CHUNK[0][:9], 2, 1])[0], CHUNK[0][:9] * 2 + 1
    )
    compiled(kernels)
    assert kernels.report()["runs"] == 0


def test_numpy_evaluates_if_underflow_is_reported():
    fake = Fake(error=AssertionError("not to be asked"))
    kernels = awake(fake)
    with np.errstate(under="warn"):
        evaluate(kernels, 3)
    assert fake.runs == 0


def test_a_literal_out_of_range_raises_numpys_error():
    case, values = expression(lambda x: x + 300 + x, np.zeros(2 * LEAST_ELEMENTS, "u1"))
    kernels = awake()
    with pytest.raises(OverflowError, match="300"):
        kernels.evaluate(case, values)


def kept_by(directory, backend, clock, chunks=12):
    kernels = awake(backend, directory=directory, clock=clock)
    evaluate(kernels, chunks)
    kernels.close()
    return kernels


def test_measurements_are_kept(tmp_path):
    clock = Clock()
    kept_by(tmp_path, Fake(clock=clock, seconds=-0.4), clock)
    assert [path.suffix for path in tmp_path.iterdir()] == [".json"]
    clock = Clock()
    again = Fake(clock=clock, seconds=-0.4)
    kept_by(tmp_path, again, clock, chunks=5)
    # the first chunk does not wait for the compiler
    assert again.runs in (5, 6)
    # of another machine nothing is known
    other = awake(Fake(clock=clock), directory=tmp_path, clock=clock, identity="other")
    evaluate(other, 1)
    assert not other._cases[next(iter(other._cases))].kept


def test_a_backend_known_to_be_slower_is_not_asked(tmp_path):
    clock = Clock()
    kept_by(tmp_path, Fake(clock=clock, seconds=3.0), clock)
    slow = Fake(clock=clock, error=AssertionError("known to be slower"))
    kernels = kept_by(tmp_path, slow, clock)
    assert slow.runs == 0
    assert kernels.report()["expressions"][0]["backend"] == "numpy"


def test_measurements_of_a_few_chunks_are_kept(tmp_path):
    clock = Clock()
    kept_by(tmp_path, Fake(clock=clock, seconds=-0.4), clock, chunks=2)
    again = Fake(clock=clock, seconds=-0.4)
    again.compiled = True
    kernels = awake(again, directory=tmp_path, clock=clock, patience=100.0)
    kernels.evaluate(CHAIN, CHUNK)
    assert again.runs == 1


def test_a_kernel_in_the_cache_is_used_at_once():
    clock = Clock()
    fake = Fake(clock=clock)
    fake.compiled = True
    kernels = awake(fake, clock=clock, patience=100.0)
    kernels.evaluate(CHAIN, CHUNK)
    compiled(kernels)
    kernels.evaluate(CHAIN, CHUNK)
    assert fake.runs == 1


def test_measurements_are_joined_with_those_of_other_processes(tmp_path):
    clock = Clock()
    first = awake(Fake(clock=clock, seconds=-0.4), directory=tmp_path, clock=clock)
    second = awake(Fake(clock=clock, seconds=-0.4), directory=tmp_path, clock=clock)
    evaluate(second, 2)
    compiled(second)
    evaluate(first, 12)
    compiled(first)
    second.evaluate(CHAIN, CHUNK)
    compiled(second)
    (case,) = second._cases.values()
    assert case.trial.times["fake"].samples == SAMPLES


def test_numpy_evaluates_after_close():
    fake = Fake(error=AssertionError("not to be asked"))
    kernels = awake(fake)
    kernels.close()
    np.testing.assert_array_equal(kernels.evaluate(CHAIN, CHUNK)[0], CHUNK[0] * 2 + 1)


@pytest.mark.parametrize("chunks", [0, 1, 2])
def test_threads_may_evaluate_during_close(tmp_path, chunks):
    clock = Clock()
    fake = Fake(clock=clock)
    kernels = awake(fake, clock=clock, directory=tmp_path, patience=1.2)
    for _ in range(chunks):
        kernels.evaluate(CHAIN, CHUNK)
    kernels._compiler.shutdown()  # as if another thread were at this place of `close`
    for _ in range(6):
        np.testing.assert_array_equal(kernels.evaluate(CHAIN, CHUNK)[0], CHUNK[0] * 2 + 1)
    kernels.wait()
    kernels.close()


def test_the_number_of_remembered_shapes_is_bounded(monkeypatch):
    monkeypatch.setattr("dask_marsched.kernels.evaluator._MOST_USES", 8)
    kernels = awake()
    base = np.ones(2 * LEAST_ELEMENTS)
    for size in (*range(20), *range(LEAST_ELEMENTS, LEAST_ELEMENTS + 20)):
        for _ in range(2):
            if size:
                kernels.evaluate(CHAIN, [base[:size], 2, 1])
            else:
                with pytest.raises(NotUnderstoodError):
                    kernels.evaluate(CHAIN, [base[:0], 2, 1])
    assert kernels._uses.cache_info().currsize == 8
    assert kernels.report()["runs"] == 40


def test_the_number_of_remembered_expressions_is_bounded(monkeypatch, tmp_path):
    monkeypatch.setattr("dask_marsched.kernels.evaluator._MOST_CASES", 4)
    kernels = awake(directory=tmp_path)
    for count in range(1, 11):
        case, values = expression(lambda x, n=count: sum((x,) * n, x), CHUNK[0])
        for _ in range(3):
            kernels.evaluate(case, values)
            compiled(kernels)
    compiled(kernels)
    assert len(kernels._cases) <= 4
    assert kernels.report()["runs"] == 30
    # their measurements are kept
    kernels.close()
    assert len(list(tmp_path.iterdir())) == 10


class OnlyElementwise(Fake):
    """A backend that has no kernels for reductions."""

    def prepare(self, bound, exact):
        if bound.typed.reduced:
            raise UnsupportedError("reductions")
        return super().prepare(bound, exact)


@pytest.mark.parametrize("reduction", ["sum", "prod", "max"])
def test_numpy_reduces_if_the_backend_only_evaluates_elements(reduction):
    clock = Clock()
    fake = OnlyElementwise(clock=clock, seconds=-0.4)
    case, values = expression(lambda x: x * 2 + 1, CHUNK[0] / 3, reduction=reduction)
    kernels = awake(fake, clock=clock)
    with np.errstate(over="ignore"):
        wanted = getattr(np, reduction)(values[0] * 2 + 1)
        assert all(found == wanted for found in evaluate(kernels, 8, case, values))
    assert fake.runs
    (fused,) = (one for one in kernels.report()["expressions"] if one["backend"] == "fake")
    assert fused["text"] == "((a * b) + c)"


def test_evaluated_elements_are_filled_into_known_values():
    """So a variance computes the values once for its mean and its squares."""
    clock = Clock()
    fake = OnlyElementwise(clock=clock, seconds=-0.4)
    case, values = expression(lambda x: x * 2 + 1, CHUNK[0] / 3, reduction="sum")
    kernels = awake(fake, clock=clock)
    evaluate(kernels, 8, case, values)
    runs, known = fake.runs, {case.outputs[0].node: None}
    kernels.evaluate(case, values, known)
    (value,) = known.values()
    np.testing.assert_array_equal(value, values[0] * 2 + 1)
    kernels.evaluate(case, values, known)
    assert fake.runs == runs + 1
