"""The soak: it kills, it compares, and it notices what is left behind."""

import os

import pytest

from benchmarks import memory_tight
from benchmarks.chaos import soak
from dask_marsched.store.segment import create_segment


@pytest.mark.slow
def test_work_goes_on_while_workers_are_killed(monkeypatch):
    told = []
    outcome = soak.run(
        0.0,
        workers=2,
        threads=1,
        every=0.5,
        most_kills=1,
        names=["anomaly"],
        sizes=[0.13],
        progress=told.append,
    )
    assert outcome.computed == len(told) >= 1
    assert outcome.kills == 1
    assert outcome.passed, outcome


@pytest.mark.extended
def test_what_is_left_is_found(tmp_path):
    # Other processes of this machine may come and go meanwhile.
    before = soak.Traces()
    (tmp_path / "a" / "b").mkdir(parents=True)
    chunk = tmp_path / "a" / "b" / "chunk"
    chunk.write_text("left")
    (tmp_path / "a" / "global.lock").write_text("distributed's")
    address = create_segment(1 << 20)
    ours = {f"shared memory: {os.fstat(address.fd).st_ino}", str(chunk)}
    left = soak.Traces().since(before, tmp_path)
    os.close(address.fd)
    assert ours <= set(left)
    assert not any(text.endswith("global.lock") for text in left)
    chunk.unlink()
    assert not ours & set(soak.Traces().since(before, tmp_path))


class _Future:
    def __init__(self, lazy):
        self.lazy = lazy

    def result(self, timeout):
        if isinstance(self.lazy, Exception):
            raise self.lazy
        return 1.0


class _Client:
    compute = _Future


@pytest.mark.parametrize(
    ("lazy", "wrong", "failed"), [(1, 1, 0), (OSError("lost"), 0, 1)], ids=["wrong", "failed"]
)
def test_wrong_results_and_failures_are_told(monkeypatch, lazy, wrong, failed):
    monkeypatch.setitem(memory_tight.WORKLOADS, "anomaly", lambda size: lazy)
    monkeypatch.setattr(soak._Expected, "__call__", lambda self, name, size: 2.0)
    once = iter([True, False])
    outcome = soak.Soak()
    rng = soak.random.Random(0)
    soak._compute(outcome, _Client(), once.__next__, [("anomaly", 1.0)], rng, lambda text: None)
    assert (len(outcome.wrong), len(outcome.failed)) == (wrong, failed)
    assert not outcome.passed
    assert soak.cells(outcome)[1][3:5] == [str(wrong), str(failed)]
