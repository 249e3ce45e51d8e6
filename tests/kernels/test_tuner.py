"""A trial times NumPy and a backend, and keeps the faster one."""

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


def test_both_candidates_are_timed_and_the_faster_is_kept():
    trial = Trial()
    chosen = run(trial, "llvm", {"numpy": 3e-9, "llvm": 1e-9}, 30)
    assert chosen.count("numpy") == SAMPLES
    assert trial.settled("llvm")
    assert set(chosen[-10:]) == {"llvm"}


def test_numpy_is_kept_if_the_backend_is_hardly_faster():
    trial = Trial()
    chosen = run(trial, "llvm", {"numpy": 1e-9, "llvm": 0.99e-9}, 20)
    assert set(chosen[-10:]) == {REFERENCE}


def test_a_much_slower_backend_is_timed_once():
    trial = Trial()
    chosen = run(trial, "slow", {"numpy": 1e-9, "slow": 2e-9}, 20)
    assert chosen.count("slow") == 1


def test_numpy_is_chosen_before_the_backend_is_ready():
    assert run(Trial(), None, {"numpy": 1e-9}, 5) == [REFERENCE] * 5


def test_repetitions_by_numpy_count_as_cost():
    # Twice as fast, but NumPy has to run again for its warnings.
    trial = Trial({REFERENCE: Times(3, 1e-9, 3), "llvm": Times(3, 0.5e-9, 4, repeated=3)})
    assert trial.cost("llvm") == pytest.approx(1.25e-9)
    assert trial.choose("llvm") == REFERENCE


def test_a_trial_survives_json():
    trial = Trial({REFERENCE: Times(3, 2e-9, 3), "llvm": Times(5, 1e-9, 10, 5)})
    again = Trial.from_json(trial.to_json())
    assert again.settled("llvm")
    assert again.cost("llvm") == pytest.approx(trial.cost("llvm"), rel=0.2)


@pytest.mark.parametrize(
    "found",
    [{"llvm": 1e-9}, {"llvm": ["fast", 1, 0]}, {"llvm": [-1, 1, 0]}, {"llvm": [1e-9, 1, 2]},
     {"llvm": [1e-9, 0, 0]}, {"llvm": [1e-9, 1]}, {"llvm": [1e-9, None, 0]}, [], None],
)  # fmt: skip
def test_invalid_json_is_refused(found):
    with pytest.raises((ValueError, TypeError, AttributeError)):
        Trial.from_json(found)


def test_the_faster_candidate_is_timed_again_first():
    trial = Trial()
    assert run(trial, None, {"numpy": 2e-9}, 1) == ["numpy"]
    assert run(trial, "llvm", {"numpy": 2e-9, "llvm": 1e-9}, 4) == ["llvm"] * 3 + ["numpy"]


def test_a_backend_known_to_be_slower_is_not_worth_a_try():
    trial = Trial({REFERENCE: Times(3, 2e-9, 3)})
    assert trial.worth_a_try("llvm")
    for times, worth in ((Times(3, 1e-9, 3), True), (Times(3, 3e-9, 3), False),
                         (Times(1, 2.5e-9, 1), True), (Times(1, 4e-9, 1), False)):  # fmt: skip
        trial.times["llvm"] = times
        assert trial.worth_a_try("llvm") == worth


def test_merging_takes_the_trial_with_more_samples():
    trial = Trial({"llvm": Times(1, 1e-9, 1)})
    trial.merge(Trial({"llvm": Times(3, 0.9e-9, 3), REFERENCE: Times(2, 2e-9, 2)}))
    assert trial.times["llvm"].samples == 3
    assert trial.times["llvm"].best == 0.9e-9
    assert trial.times[REFERENCE].samples == 2
