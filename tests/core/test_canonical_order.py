"""An order that follows from the graph alone."""

import itertools
import random

import hypothesis.strategies as st
from hypothesis import given

from dask_marsched.core.canonical_order import canonical_order

Operand = tuple[str, tuple[int, ...], tuple[int, ...]]  # layer, index, numbers of what it reads


def ordered(operands: list[Operand]) -> list[int]:
    names = [name for name, _, _ in operands]
    words = {name: name.split("-")[0] for name in names}
    return canonical_order(
        names, [index for _, index, _ in operands], words, [reads for _, _, reads in operands]
    )


def test_layers_come_by_depth_and_operands_by_their_indices() -> None:
    operands: list[Operand] = [
        ("load-1", (1, 0), ()),
        ("load-1", (0, 10), ()),
        ("sum-1", (0,), (0, 1)),
        ("load-1", (0, 9), ()),
        ("add-1", (), (2, 3)),
    ]
    assert ordered(operands) == [3, 1, 0, 2, 4]


def test_layers_of_equal_depth_are_sorted_by_word() -> None:
    one: list[Operand] = [("b-1", (), ()), ("a-2", (), ())]
    other: list[Operand] = [("b-2", (), ()), ("a-9", (), ())]
    assert ordered(one) == ordered(other) == [1, 0]


def test_layers_with_equal_words_are_sorted_by_size() -> None:
    assert ordered([("a-1", (0,), ()), ("a-1", (1,), ()), ("a-2", (0,), ())]) == [2, 0, 1]


def test_equal_layers_are_sorted_by_their_readers() -> None:
    def product(left: str, right: str) -> list[str]:
        operands: list[Operand] = sorted([(left, (), ()), (right, (), ())])
        place = {name: i for i, (name, _, _) in enumerate(operands)}
        operands += [
            ("inc-1", (), (place[left],)),
            ("scaled-1", (), (place[right],)),
            ("dot-1", (), (2, 3)),
        ]
        return [operands[i][0] for i in ordered(operands)]

    assert product("load-1", "load-2")[:2] == ["load-1", "load-2"]
    assert product("load-2", "load-1")[:2] == ["load-2", "load-1"]


def test_equal_layers_are_sorted_by_the_operands_that_read_them() -> None:
    def factors(left: str, right: str) -> list[str]:
        operands: list[Operand] = []
        for name in sorted((left, right)):
            operands += [(name, (i, j), ()) for i in range(2) for j in range(2)]
        place = {(name, index): n for n, (name, index, _) in enumerate(operands)}
        for i, k, j in itertools.product(range(2), repeat=3):
            operands.append(("dot-1", (i, k, j), (place[left, (i, k)], place[right, (k, j)])))
        names = [operands[n][0] for n in ordered(operands)]
        return names[::4][:2]

    assert factors("load-1", "load-2") == factors("load-2", "load-1")[::-1]


def test_indices_that_cannot_be_compared_still_have_an_order() -> None:
    operands = [("a-1", (1,), ()), ("a-1", ("x",), ()), ("a-1", (0,), ())]
    names = [name for name, _, _ in operands]
    found = canonical_order(names, [index for _, index, _ in operands], {"a-1": "a"}, [(), (), ()])
    assert found == [2, 0, 1]


def test_nothing_is_in_order() -> None:
    assert canonical_order([], [], {}, []) == []


@st.composite
def graphs(draw: st.DrawFn) -> list[Operand]:
    """Layers of operands with different words, each of which reads from earlier layers."""
    operands: list[Operand] = []
    for layer in range(draw(st.integers(1, 4))):
        earlier = len(operands)
        for index in range(draw(st.integers(1, 4))):
            reads = draw(st.sets(st.integers(0, earlier - 1), max_size=4)) if earlier else set()
            operands.append((f"{'abcd'[layer]}-1", (index,), tuple(sorted(reads))))
    return operands


@given(graphs(), st.randoms(use_true_random=False))
def test_the_order_is_one_of_operands_not_of_numbers(
    operands: list[Operand], rng: random.Random
) -> None:
    found = ordered(operands)
    assert sorted(found) == list(range(len(operands)))
    place: dict[int, int] = {}
    left = list(range(len(operands)))
    while left:  # another topological order
        ready = [i for i in left if all(j in place for j in operands[i][2])]
        i = rng.choice(ready)
        place[i] = len(place)
        left.remove(i)
    renumbered = [
        (name, index, tuple(place[j] for j in reads))
        for _, (name, index, reads) in sorted(enumerate(operands), key=lambda item: place[item[0]])
    ]
    assert [place[i] for i in found] == ordered(renumbered)
