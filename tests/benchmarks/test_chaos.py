"""Chaos runs inject faults, compare results, and notice failures."""

import pytest

from benchmarks.chaos import (
    chaos_run,
    computations,
    fault_injection,
    resource_watch,
)


@pytest.mark.slow
def test_work_goes_on_in_chaos(tmp_path, monkeypatch):
    monkeypatch.setattr(fault_injection, "STOPS", (0.5,))
    told = []
    outcome = chaos_run.run(
        0.0, every=2.0, names=("persisted",), dumps=tmp_path, progress=told.append
    )
    assert outcome.kills >= 1
    assert outcome.computed == outcome.done["persisted"] == len(told) >= 1
    assert outcome.wrong == outcome.failed == outcome.hung == []
    assert outcome.exceptions == {}
    assert outcome.left == []
    assert outcome.totals["losses"] >= 1
    # Of the plugin alone, not of all that the scheduler has.
    assert 1e5 < outcome.samples[0].plugin < 1e8
    assert (tmp_path / "faults.log").read_text()
    assert [row[1] for row in chaos_run.cells(outcome)] == ["kills", str(outcome.kills)]


def sample(seconds, scheduler):
    return resource_watch.Sample(seconds, scheduler, 1, 1, 1, 4, 0, 0, 0)


def test_the_slope_is_that_of_the_second_half():
    grows_first = [sample(10.0 * i, 1000 * min(i, 30)) for i in range(60)]
    assert resource_watch.slope(grows_first) == pytest.approx(0, abs=1e-6)
    grows = [sample(10.0 * i, 1000 * i) for i in range(60)]
    assert resource_watch.slope(grows) == pytest.approx(360_000)
    assert resource_watch.slope(grows[:10]) is None


class _Client:
    run_on_scheduler = run = staticmethod(lambda *args, **kwargs: {})


@pytest.mark.parametrize(
    ("result", "kind"),
    [(1, "done"), (2, "wrong"), (OSError("lost"), "failed"), (TimeoutError(), "hung")],
)
def test_what_came_of_it_is_told(tmp_path, monkeypatch, result, kind):
    def work(client, variant):
        if client is None:
            return 1
        if isinstance(result, Exception):
            raise result
        return result

    monkeypatch.setitem(computations.WORK, "x", work)
    computations.expected.cache_clear()
    once = iter([True, False])
    outcome = chaos_run.Chaos()
    rng = chaos_run.random.Random(0)
    chaos_run._stream(
        outcome, _Client(), once.__next__, ("x",), rng, tmp_path, progress=lambda t: None, log=[]
    )
    assert bool(getattr(outcome, kind))
    assert outcome.passed == (kind == "done")
    assert (tmp_path / "hang-0.txt").exists() == (kind == "hung")


def test_an_exception_of_ours_or_a_missing_worker_is_no_success():
    assert chaos_run.Chaos().passed
    assert not chaos_run.Chaos(exceptions={"adopt": 1}).passed
    assert not chaos_run.Chaos(left=["3 results"]).passed
