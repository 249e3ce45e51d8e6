"""Which results are shared unasked."""

from dask_marsched.policies.sharing import ShareModel


def test_nothing_is_shared_that_nobody_asked_for():
    model = ShareModel()
    model.made("a")
    assert not model.is_shared("a")
    assert not model.is_shared("never made")


def test_one_that_was_asked_for_is_no_habit():
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
