"""What operands need, learned from those of the same kind."""

from hypothesis import given
from hypothesis import strategies as st

from dask_marsched.policies import memory_needs
from dask_marsched.policies.memory_needs import NeedModel, OperandKind

MB = 10**6


def test_unknown_operands_are_guessed_from_their_inputs():
    model = NeedModel()
    kind = OperandKind("add", 2, 8 * MB)
    assert model.output(kind) == 8 * MB
    assert model.footprint(kind) == 16 * MB
    assert model.output(OperandKind("random", 0, 0)) == 0


def test_a_known_result_size_is_used():
    model = NeedModel()
    assert model.footprint(OperandKind("random", 0, 0), 32 * MB) == 64 * MB
    # What makes little of much, a reduction, may need much meanwhile.
    assert model.footprint(OperandKind("var", 4, 32 * MB), 8) == 64 * MB
    assert model.footprint(OperandKind("outer", 2, MB), 100 * MB) == 200 * MB


def test_noise_on_small_operands_is_not_extrapolated():
    model = NeedModel()
    model.observe_output(OperandKind("getitem", 1, 100_000), 100_000)
    model.observe_footprint(OperandKind("getitem", 1, 100_000), 2 * MB)
    assert model.footprint(OperandKind("getitem", 1, 100_000)) == 2 * MB
    assert model.footprint(OperandKind("getitem", 1, 32 * MB)) == 8 * 32 * MB


def test_a_number_may_say_how_much_is_made():
    model = NeedModel()
    model.observe_output(OperandKind("lambda", 1, 28), 2 * MB)
    model.observe_footprint(OperandKind("lambda", 1, 28), 4 * MB)
    assert model.footprint(OperandKind("lambda", 1, 32)) == 4 * MB
    array = OperandKind("lambda", 1, 32 * MB)
    assert model.output(array) == 32 * MB
    assert model.footprint(array) == 64 * MB


def test_the_same_kind_is_known():
    model = NeedModel()
    kind = OperandKind("std", 2, 64 * MB)
    model.observe_output(kind, 100)
    model.observe_footprint(kind, 96 * MB)
    assert (model.output(kind), model.footprint(kind)) == (100, 96 * MB)
    assert model.seen(kind) == 1
    # To within a fifth it is the same size.
    assert model.footprint(OperandKind("std", 2, 65 * MB)) == 96 * MB


def test_other_sizes_are_in_proportion():
    model = NeedModel()
    model.observe_output(OperandKind("add", 2, 10 * MB), 5 * MB)
    model.observe_footprint(OperandKind("add", 2, 10 * MB), 15 * MB)
    other = OperandKind("add", 2, 40 * MB)
    assert (model.output(other), model.footprint(other)) == (20 * MB, 60 * MB)
    assert model.seen(other) == 0


def test_sources_are_of_one_size_until_seen():
    model = NeedModel()
    model.observe_output(OperandKind("random", 0, 0), 32 * MB)
    assert model.output(OperandKind("random", 0, 0)) == 32 * MB
    assert model.footprint(OperandKind("random", 0, 0)) == 64 * MB


def test_more_is_believed_at_once_and_less_by_and_by():
    model = NeedModel()
    kind = OperandKind("add", 2, 10 * MB)
    model.observe_footprint(kind, 50 * MB)
    model.observe_footprint(kind, 20 * MB)
    assert 40 * MB < model.footprint(kind) < 50 * MB
    model.observe_footprint(kind, 80 * MB)
    assert model.footprint(kind) == 80 * MB
    for _ in range(100):
        model.observe_footprint(kind, 20 * MB)
    assert model.footprint(kind) < 21 * MB


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.integers(0, MB), st.integers(0, MB)))
)
def test_a_result_is_part_of_the_footprint(seen):
    model = NeedModel()
    for is_output, n, inputs, nbytes in seen:
        kind = OperandKind("add", n, inputs if n else 0)
        (model.observe_output if is_output else model.observe_footprint)(kind, nbytes)
        assert model.footprint(kind) >= model.output(kind) >= 0


def test_kinds_that_were_not_seen_for_long_are_forgotten(monkeypatch):
    """As where each task has a name of its own."""
    monkeypatch.setattr(memory_needs, "_MOST_KINDS", 3)
    model, often = NeedModel(), OperandKind("often", 1, MB)
    names = [OperandKind(f"job_{n}", 1, MB) for n in range(9)]
    for kind in names:
        for one in (kind, often):
            model.observe_output(one, 5)
            model.observe_footprint(one, 7 * MB)
    assert (model.output(often), model.seen(often)) == (5, 9)
    assert [model.is_measured(kind) for kind in names] == [False] * 7 + [True] * 2
    assert len(model._seen) == 3
