"""Which results are shared unasked."""

from dask_marsched.policies.sharing import ShareModel, Upkeep


def test_kinds_that_were_not_requested_are_not_shared():
    model = ShareModel()
    model.made("a")
    assert not model.is_shared("a")
    assert not model.is_shared("never made")


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
    upkeep = Upkeep()
    for _ in range(10_000):
        upkeep.worked(0.0004)
        if upkeep.affords():
            upkeep.kept()
    kept = 0
    for _ in range(10_000):
        upkeep.worked(0.0004)
        if upkeep.affords():
            upkeep.kept()
            kept += 1
    assert 900 < kept < 1100, "a fifth of a millisecond for each, of a twentieth of four seconds"


def test_longer_operands_have_all_their_results_kept():
    upkeep = Upkeep()
    for _ in range(1000):
        upkeep.worked(0.12)
        assert upkeep.affords(8 << 20)
        upkeep.kept(8 << 20)


def test_a_long_copy_delays_the_next_one():
    upkeep = Upkeep()
    assert upkeep.affords(2 << 30)
    upkeep.kept(2 << 30)
    upkeep.worked(10)
    assert not upkeep.affords()
    upkeep.worked(10)
    assert upkeep.affords()


def test_memory_that_comes_with_arrays_counts_as_well():
    upkeep = Upkeep()
    upkeep.filled(1 << 30)
    assert not upkeep.affords()
    upkeep.worked(10)
    assert upkeep.affords()
