"""Evaluation by the fastest backend: choice, failures, warnings, what is kept on disk."""

import itertools
import math
import os
import threading
import time
import tracemalloc
import warnings

import numpy as np
import pytest

from dask_marsched.kernels import cache_files, numpy_backend
from dask_marsched.kernels.backend import Results, UnsupportedError
from dask_marsched.kernels.evaluator import LEAST, Kernels, Means
from dask_marsched.kernels.expression import NotUnderstoodError
from dask_marsched.kernels.tuner import SAMPLES
from tests.kernels.expressions import expression

CHAIN, CHUNK = expression(lambda x: x * 2 + 1, np.arange(float(2 * LEAST)))
CASE = (CHAIN, CHUNK)
DIVISION, _ = expression(lambda x: (x / 0.0) + 1, np.zeros(2 * LEAST))


class Fake:
    """A backend that is told how long it takes, what it raises, and whether it fails."""

    def __init__(self, name="fake", clock=None, seconds=0.0, raised=(), error=None, gate=None):
        self.name, self.clock, self.seconds = name, clock, seconds
        self.raised, self.error, self.gate, self.runs = set(raised), error, gate, 0
        self.compiled = False

    def at_hand(self, setting, exact):
        return self.compiled

    def prepare(self, setting, exact):
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
                return Results(numpy_backend.evaluate(setting.expression, values), self.raised)

        return run


class Clock:
    """Time that passes when NumPy is asked (one second each), or a backend says so."""

    def __init__(self):
        self.now = 0.0
        self.calls = itertools.count()

    def __call__(self):
        self.now += 0.5
        return self.now


def compiled(kernels):
    """Wait until what is compiled in the background is ready."""
    kernels._compiler.submit(int).result()


def evaluate(kernels, chunks=12, case=CHAIN, values=CHUNK):
    kernels.evaluate(case, values)
    compiled(kernels)
    return [kernels.evaluate(case, values)[0] for _ in range(chunks)]


def test_a_faster_backend_takes_over_and_time_saved_is_told():
    clock = Clock()
    fake = Fake(clock=clock, seconds=-0.4)
    kernels = Kernels(fake, clock=clock)
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


def test_what_hardly_takes_time_is_not_compiled():
    clock = Clock()  # half a second for each chunk
    fake = Fake(clock=clock)
    kernels = Kernels(fake, clock=clock, patience=1.2)
    runs = []
    for _ in range(5):
        kernels.evaluate(CHAIN, CHUNK)
        compiled(kernels)
        runs.append(fake.runs)
    assert runs[:4] == [0, 0, 0, 1]


def test_while_it_compiles_numpy_runs():
    gate, clock = threading.Event(), Clock()
    fake = Fake(clock=clock, gate=gate)
    kernels = Kernels(fake, clock=clock)
    for _ in range(3):
        kernels.evaluate(CHAIN, CHUNK)
    assert fake.runs == 0
    gate.set()
    compiled(kernels)
    kernels.evaluate(CHAIN, CHUNK)
    assert fake.runs == 1


def test_nothing_is_looked_up_before_numpy_has_spent_enough(tmp_path):
    clock, asked = Clock(), []
    fake = Fake(clock=clock, seconds=-0.4)

    def late():
        asked.append(True)
        return Means(fake, tmp_path, "")

    kernels = Kernels(clock=clock, patience=2.0, late=late)
    for case in (CHAIN, DIVISION, CHAIN):
        kernels.evaluate(case, [np.ones(2 * LEAST), 2, 1])  # half a second each
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
    kernels.close()  # it keeps what was measured
    assert len(list(tmp_path.iterdir())) == 1


def test_one_that_fails_is_given_up_and_named(caplog):
    kernels = Kernels(Fake(error=RuntimeError("no luck")))
    results = evaluate(kernels)
    np.testing.assert_array_equal(results[0], CHUNK[0] * 2 + 1)
    report = kernels.report()
    assert report["expressions"][0]["given_up"] == {"fake": "RuntimeError: no luck"}
    assert report["exceptions"] == {"kernel.fake": 1}
    assert sum("gives up" in r.getMessage() for r in caplog.records) == 1


def test_what_a_backend_cannot_do_is_no_failure():
    kernels = Kernels(Fake(error=UnsupportedError("not that")))
    evaluate(kernels)
    assert kernels.report()["exceptions"] == {}
    assert kernels.report()["expressions"][0]["given_up"] == {}


def test_numpy_tells_its_warnings():
    clock = Clock()
    fake = Fake(clock=clock, seconds=-0.4, raised={"divide"})
    kernels = Kernels(fake, clock=clock)
    values = [np.ones(2 * LEAST), 0.0, 1]
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
def test_what_is_left_to_whoever_asks(value):
    kernels = Kernels(Fake(error=AssertionError("not to be asked")))
    for _ in range(2):
        with pytest.raises(NotUnderstoodError):
            kernels.evaluate(CHAIN, [value, 2, 1])
    compiled(kernels)
    assert kernels.report()["runs"] == 0


def test_small_chunks_are_left_to_numpy():
    kernels = Kernels(Fake(error=AssertionError("not to be asked")))
    np.testing.assert_array_equal(
        kernels.evaluate(CHAIN, [CHUNK[0][:9], 2, 1])[0], CHUNK[0][:9] * 2 + 1
    )
    compiled(kernels)
    assert kernels.report()["runs"] == 0


def test_with_underflow_watched_numpy_runs():
    fake = Fake(error=AssertionError("not to be asked"))
    kernels = Kernels(fake)
    with np.errstate(under="warn"):
        evaluate(kernels, 3)
    assert fake.runs == 0


def test_a_literal_too_large_is_numpys_affair():
    case, values = expression(lambda x: x + 300 + x, np.zeros(2 * LEAST, "u1"))
    kernels = Kernels()
    with pytest.raises(OverflowError, match="300"):
        kernels.evaluate(case, values)


def kept_by(directory, backend, clock, chunks=12):
    kernels = Kernels(backend, directory=directory, clock=clock)
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
    # the first chunk does not wait for what has to be compiled
    assert again.runs in (5, 6)
    # of another machine nothing is known
    other = Kernels(Fake(clock=clock), directory=tmp_path, clock=clock, identity="other")
    evaluate(other, 1)
    assert not other._cases[next(iter(other._cases))].kept


def test_a_backend_known_to_be_slower_is_not_asked(tmp_path):
    clock = Clock()
    kept_by(tmp_path, Fake(clock=clock, seconds=3.0), clock)
    slow = Fake(clock=clock, error=AssertionError("known to be slower"))
    kernels = kept_by(tmp_path, slow, clock)
    assert slow.runs == 0
    assert kernels.report()["expressions"][0]["backend"] == "numpy"


def test_a_program_of_few_chunks_leaves_what_it_learned_to_the_next(tmp_path):
    clock = Clock()
    kept_by(tmp_path, Fake(clock=clock, seconds=-0.4), clock, chunks=2)
    again = Fake(clock=clock, seconds=-0.4)
    again.compiled = True
    kernels = Kernels(again, directory=tmp_path, clock=clock, patience=100.0)
    kernels.evaluate(CHAIN, CHUNK)
    assert again.runs == 1


def test_what_was_compiled_before_needs_no_patience():
    clock = Clock()
    fake = Fake(clock=clock)
    fake.compiled = True
    kernels = Kernels(fake, clock=clock, patience=100.0)
    kernels.evaluate(CHAIN, CHUNK)
    compiled(kernels)
    kernels.evaluate(CHAIN, CHUNK)
    assert fake.runs == 1


def test_processes_hear_what_others_measure_meanwhile(tmp_path):
    clock = Clock()
    first = Kernels(Fake(clock=clock, seconds=-0.4), directory=tmp_path, clock=clock)
    second = Kernels(Fake(clock=clock, seconds=-0.4), directory=tmp_path, clock=clock)
    evaluate(second, 2)
    compiled(second)
    evaluate(first, 12)
    compiled(first)
    second.evaluate(CHAIN, CHUNK)
    compiled(second)
    (case,) = second._cases.values()
    assert case.trial.times["fake"].samples == SAMPLES


def test_one_process_makes_a_file_while_others_wait(tmp_path):
    path, made, both = tmp_path / "code.o", [], threading.Barrier(2)

    def make():
        both.wait()
        with cache_files.claimed(path):
            if cache_files.read(path) is None:
                made.append(threading.get_ident())
                cache_files.write(path, b"machine code")

    threads = [threading.Thread(target=make) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1


def test_numpy_computes_nothing_twice():
    case, values = expression(lambda x: x * 2 + 1, CHUNK[0], reduction="sum")
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
def test_numpy_in_the_memory_of_temporaries_is_numpy(form, layouts, monkeypatch):
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


def test_numpy_takes_no_more_memory_than_it_needs():
    x = np.ones(1 << 20)
    case, values = expression(lambda x: ((x * 2 + 1) ** 2 - 3) / 7, x)
    tracemalloc.start()
    try:
        numpy_backend.evaluate(case, values)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 1.1 * x.nbytes


def test_a_file_that_is_damaged_is_not_there(tmp_path):
    path = tmp_path / "code.o"
    assert cache_files.read(path) is None
    cache_files.write(path, b"machine code")
    assert cache_files.read(path) == b"machine code"
    path.write_bytes(path.read_bytes()[:-1])
    assert cache_files.read(path) is None


def test_writers_at_the_same_time_leave_a_whole_file(tmp_path):
    path, contents = tmp_path / "code.o", [bytes([n]) * 100_000 for n in range(8)]
    threads = [threading.Thread(target=cache_files.write, args=(path, c)) for c in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cache_files.read(path) in contents
    assert list(tmp_path.iterdir()) == [path]


def test_what_nobody_uses_is_deleted(tmp_path):
    now, day = time.time(), 86400.0

    def made(name, age, size=10):
        (tmp_path / name).write_bytes(b"x" * size)
        os.utime(tmp_path / name, (now - age, now - age))

    old, new = 31 * day, 29 * day
    for name, age in (("a" * 40, old), ("b" * 40, new)):
        for suffix in ("o", "json", "lock"):
            made(f"{name}.{suffix}", age)
    made("tmpk2x_9.tmp", old)
    made("tmpk3x_9.tmp", new)
    made("notes.txt", old)
    made("c" * 39 + ".o", old)
    wanted = {*(f"{'b' * 40}.{s}" for s in ("o", "json", "lock")), "tmpk3x_9.tmp"}
    others = {"notes.txt", "c" * 39 + ".o", "pruned"}
    cache_files.prune(tmp_path, now)
    assert {path.name for path in tmp_path.iterdir()} == wanted | others
    # once a day is enough
    made("a" * 40 + ".o", old)
    cache_files.prune(tmp_path, now + day - 1)
    assert (tmp_path / ("a" * 40 + ".o")).exists()
    cache_files.prune(tmp_path, now + day)
    assert not (tmp_path / ("a" * 40 + ".o")).exists()


def test_of_too_much_on_disk_the_latest_used_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(cache_files, "MOST_BYTES", 2 * 10_032)
    now, paths = time.time(), [tmp_path / f"{digit * 40}.o" for digit in "abc"]
    for age, path in enumerate(reversed(paths)):
        cache_files.write(path, b"x" * 10_000)
        os.utime(path, (now - 60 * age - 60, now - 60 * age - 60))
    assert cache_files.read(paths[0]) is not None  # the eldest, which is used
    cache_files.prune(tmp_path)
    assert [path.exists() for path in paths] == [True, False, True]


def test_code_is_loaded_from_nowhere_that_others_may_write_to(tmp_path):
    assert cache_files.private(tmp_path / "own") == tmp_path / "own"
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    assert cache_files.private(shared) is None
    assert cache_files.private(tmp_path / "own" / "missing" / "deep") is not None


def test_closed_it_leaves_all_to_numpy():
    fake = Fake(error=AssertionError("not to be asked"))
    kernels = Kernels(fake)
    kernels.close()
    np.testing.assert_array_equal(kernels.evaluate(CHAIN, CHUNK)[0], CHUNK[0] * 2 + 1)


@pytest.mark.parametrize("chunks", [0, 1, 2])
def test_threads_go_on_while_it_is_closed(tmp_path, chunks):
    """What is to be done in the background may come too late, at any place."""
    clock = Clock()
    fake = Fake(clock=clock)
    kernels = Kernels(fake, clock=clock, directory=tmp_path, patience=1.2)
    for _ in range(chunks):
        kernels.evaluate(CHAIN, CHUNK)
    kernels._compiler.shutdown()  # as if another thread were at this place of `close`
    for _ in range(6):
        np.testing.assert_array_equal(kernels.evaluate(CHAIN, CHUNK)[0], CHUNK[0] * 2 + 1)
    kernels.wait()
    kernels.close()


def test_chunks_of_any_shapes_are_not_remembered_for_ever(monkeypatch):
    monkeypatch.setattr("dask_marsched.kernels.evaluator._MOST_USES", 8)
    kernels = Kernels()
    base = np.ones(2 * LEAST)
    for size in (*range(20), *range(LEAST, LEAST + 20)):
        for _ in range(2):
            if size:
                kernels.evaluate(CHAIN, [base[:size], 2, 1])
            else:
                with pytest.raises(NotUnderstoodError):
                    kernels.evaluate(CHAIN, [base[:0], 2, 1])
    assert kernels._uses.cache_info().currsize == 8
    assert kernels.report()["runs"] == 40


def test_expressions_are_forgotten_but_not_their_figures(monkeypatch, tmp_path):
    monkeypatch.setattr("dask_marsched.kernels.evaluator._MOST_CASES", 4)
    kernels = Kernels(directory=tmp_path)
    for count in range(1, 11):
        case, values = expression(lambda x, n=count: sum((x,) * n, x), CHUNK[0])
        for _ in range(3):
            kernels.evaluate(case, values)
            compiled(kernels)
    compiled(kernels)
    assert len(kernels._cases) <= 4
    assert kernels.report()["runs"] == 30
    # what was measured is kept
    kernels.close()
    assert len(list(tmp_path.iterdir())) == 10


class OnlyElementwise(Fake):
    """A backend that has no kernels for reductions."""

    def prepare(self, setting, exact):
        if setting.typed.reduced:
            raise UnsupportedError("reductions")
        return super().prepare(setting, exact)


@pytest.mark.parametrize("reduction", ["sum", "prod", "max"])
def test_numpy_reduces_what_a_backend_has_written(reduction):
    clock = Clock()
    fake = OnlyElementwise(clock=clock, seconds=-0.4)
    case, values = expression(lambda x: x * 2 + 1, CHUNK[0] / 3, reduction=reduction)
    kernels = Kernels(fake, clock=clock)
    with np.errstate(over="ignore"):
        wanted = getattr(np, reduction)(values[0] * 2 + 1)
        assert all(found == wanted for found in evaluate(kernels, 8, case, values))
    assert fake.runs
    (fused,) = (one for one in kernels.report()["expressions"] if one["backend"] == "fake")
    assert fused["text"] == "((a * b) + c)"


def test_what_is_written_is_known_afterwards():
    """The squares of a variance are of values that NumPy has reduced once."""
    clock = Clock()
    fake = OnlyElementwise(clock=clock, seconds=-0.4)
    case, values = expression(lambda x: x * 2 + 1, CHUNK[0] / 3, reduction="sum")
    kernels = Kernels(fake, clock=clock)
    evaluate(kernels, 8, case, values)
    runs, known = fake.runs, {case.outputs[0].node: None}
    kernels.evaluate(case, values, known)
    (value,) = known.values()
    np.testing.assert_array_equal(value, values[0] * 2 + 1)
    kernels.evaluate(case, values, known)
    assert fake.runs == runs + 1
