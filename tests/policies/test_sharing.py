"""Which results are shared unasked."""

from dask_marsched.policies import sharing
from dask_marsched.policies.sharing import RetentionBudget, ShareModel


def test_kinds_that_were_not_requested_are_not_shared():
    model = ShareModel()
    model.made("a")
    assert not model.is_shared("a")
    assert not model.is_shared("never made")


def test_kinds_are_learnt_anew_once_they_are_many(monkeypatch):
    monkeypatch.setattr(sharing, "_MOST_KINDS", 3)
    model = ShareModel()
    for n in range(9):
        for _ in range(2):
            model.made(f"job_{n}")
            model.asked(f"job_{n}")
    assert [model.is_shared(f"job_{n}") for n in range(9)] == [False] * 6 + [True] * 3


def test_one_request_does_not_share_a_kind():
    model = ShareModel()
    model.made("a")
    model.asked("a")
    assert not model.is_shared("a")


def test_a_kind_is_shared_while_half_of_it_is_asked_for():
    model = ShareModel()
    for _ in range(4):
        model.made("a")
    model.asked("a")
    model.asked("a")
    assert model.is_shared("a")
    assert not model.is_shared("b")
    model.made("a")
    assert not model.is_shared("a")
    model.asked("a")
    assert model.is_shared("a")


def test_keeping_takes_a_small_share_of_the_work():
    budget = RetentionBudget()
    for _ in range(10_000):
        budget.worked(0.0004)
        if budget.affords():
            budget.kept()
    kept = 0
    for _ in range(10_000):
        budget.worked(0.0004)
        if budget.affords():
            budget.kept()
            kept += 1
    assert 360 < kept < 440, "a fifth of a millisecond for each, of a fiftieth of four seconds"


def test_what_takes_long_to_copy_is_kept_less_often():
    """As data frames of a few bytes, which have to be pickled."""
    budget = RetentionBudget()
    kept = 0
    for _ in range(10_000):
        budget.worked(0.004)
        if budget.affords(100):
            budget.kept(100, seconds=0.0018)
            kept += 1
    assert 360 < kept < 460, "two milliseconds for each, of a fiftieth of forty seconds"


def test_longer_operands_have_all_their_results_kept():
    budget = RetentionBudget()
    for _ in range(1000):
        budget.worked(0.3)
        assert budget.affords(8 << 20)
        budget.kept(8 << 20)


def test_a_long_copy_delays_the_next_one():
    budget = RetentionBudget()
    assert budget.affords(2 << 30)
    budget.kept(2 << 30)
    budget.worked(25)
    assert not budget.affords()
    budget.worked(25)
    assert budget.affords()


def test_memory_that_comes_with_arrays_counts_as_well():
    budget = RetentionBudget()
    budget.filled(1 << 30)
    assert not budget.affords()
    budget.worked(25)
    assert budget.affords()
