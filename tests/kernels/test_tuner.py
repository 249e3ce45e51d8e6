"""Which backend is tried, kept, and dropped."""

import pytest

from dask_marsched.kernels.tuner import REFERENCE, SAMPLES, Times, Trial


def run(trial, ready, seconds, chunks):
    """Let a trial choose; return what it chose."""
    chosen = []
    for _ in range(chunks):
        name = trial.choose(ready)
        trial.times.setdefault(name, Times()).take(seconds[name], False)
        chosen.append(name)
    return chosen


def test_each_candidate_is_timed_and_the_fastest_kept():
    trial = Trial()
    chosen = run(trial, "llvm", {"numpy": 3e-9, "llvm": 1e-9}, 30)
    assert chosen.count("numpy") == SAMPLES
    assert trial.settled("llvm")
    assert set(chosen[-10:]) == {"llvm"}


def test_the_reference_is_always_a_candidate_and_wins_ties():
    trial = Trial()
    chosen = run(trial, "llvm", {"numpy": 1e-9, "llvm": 0.99e-9}, 20)
    assert set(chosen[-10:]) == {REFERENCE}


def test_a_hopeless_candidate_gets_one_chunk():
    trial = Trial()
    chosen = run(trial, "slow", {"numpy": 1e-9, "slow": 2e-9}, 20)
    assert chosen.count("slow") == 1


def test_before_anything_is_ready_the_reference_runs():
    assert run(Trial(), None, {"numpy": 1e-9}, 5) == [REFERENCE] * 5


def test_repetitions_count():
    # Twice as fast, but NumPy has to run again for its warnings.
    trial = Trial({REFERENCE: Times(3, 1e-9, 3), "llvm": Times(3, 0.5e-9, 4, repeated=3)})
    assert trial.cost("llvm") == pytest.approx(1.25e-9)
    assert trial.choose("llvm") == REFERENCE


def test_it_is_handed_on():
    trial = Trial({REFERENCE: Times(3, 2e-9, 3), "llvm": Times(5, 1e-9, 10, 5)})
    again = Trial.from_json(trial.to_json())
    assert again.settled("llvm")
    assert again.cost("llvm") == pytest.approx(trial.cost("llvm"), rel=0.2)


@pytest.mark.parametrize(
    "found",
    [{}, {"best": {"llvm": "fast"}, "repeated": {}}, {"best": {"llvm": -1}, "repeated": {}},
     {"best": {"llvm": 1e-9}, "repeated": {"llvm": 2}}, {"best": [], "repeated": {}}],
)  # fmt: skip
def test_nonsense_is_refused(found):
    with pytest.raises((ValueError, TypeError, KeyError, AttributeError)):
        Trial.from_json(found)


def test_the_faster_is_timed_again_before_the_other():
    trial = Trial()
    assert run(trial, None, {"numpy": 2e-9}, 1) == ["numpy"]
    assert run(trial, "llvm", {"numpy": 2e-9, "llvm": 1e-9}, 4) == ["llvm"] * 3 + ["numpy"]


def test_what_is_known_to_be_slower_is_not_worth_a_try():
    trial = Trial({REFERENCE: Times(3, 2e-9, 3)})
    assert trial.worth_a_try("llvm")
    for times, worth in ((Times(3, 1e-9, 3), True), (Times(3, 3e-9, 3), False),
                         (Times(1, 2.5e-9, 1), True), (Times(1, 4e-9, 1), False)):  # fmt: skip
        trial.times["llvm"] = times
        assert trial.worth_a_try("llvm") == worth


def test_two_trials_know_more_than_one():
    trial = Trial({"llvm": Times(1, 1e-9, 1)})
    trial.merge(Trial({"llvm": Times(3, 0.9e-9, 3), REFERENCE: Times(2, 2e-9, 2)}))
    assert trial.times["llvm"].samples == 3
    assert trial.times["llvm"].best == 0.9e-9
    assert trial.times[REFERENCE].samples == 2
