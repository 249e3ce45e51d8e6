"""The smallest recovery from a loss, compared with all possible ones."""

import os
from itertools import chain, combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_marsched.core.graph import Edges
from dask_marsched.policies.recomputation import Lineage, Recovery, smallest_recovery

#: ``MARSCHED_EXAMPLES=2000`` tries more graphs.
EXAMPLES = int(os.environ.get("MARSCHED_EXAMPLES", "300"))


def lineage(inputs, ran, held, wanted) -> Lineage:
    """Return a `Lineage` of sets of numbers."""
    flags = (bytes(i in found for i in range(len(inputs))) for found in (ran, held, wanted))
    return Lineage(Edges.of(inputs), *flags)


def is_sufficient(graph: Lineage, again: tuple[int, ...] | set[int]) -> bool:
    """Whether all wanted results exist if exactly these operands are computed again."""
    there = list(map(bool, graph.held))
    for i in range(len(there)):
        if not there[i] and (i in again or not graph.ran[i]):
            there[i] = all(there[j] for j in graph.inputs[i])
    return all(there[i] for i, is_wanted in enumerate(graph.wanted) if is_wanted)


def recovery(graph: Lineage, lost: set[int]) -> Recovery:
    return smallest_recovery(graph, graph.inputs.reversed(), lost)


def fewest(graph: Lineage) -> set[int]:
    """Try all sets of operands that ran and whose results are not there, small ones first."""
    gone = [i for i in range(len(graph.inputs)) if graph.ran[i] and not graph.held[i]]
    subsets = chain.from_iterable(combinations(gone, k) for k in range(len(gone) + 1))
    found = next(set(subset) for subset in subsets if is_sufficient(graph, subset))
    size = len(found)
    others = [s for s in combinations(gone, size) if is_sufficient(graph, s)]
    assert len(others) == 1, "the smallest set is unique"
    return found


@st.composite
def losses(draw: st.DrawFn) -> tuple[Lineage, set[int]]:
    """A graph in the middle of its run, as a scheduler leaves it, and what is lost of it."""
    n = draw(st.integers(1, 10))
    inputs = [
        sorted(draw(st.sets(st.integers(0, i - 1), max_size=3))) if i else [] for i in range(n)
    ]
    ran: set[int] = set()
    for i in range(n):  # what ran had its inputs
        if ran.issuperset(inputs[i]) and draw(st.booleans()):
            ran.add(i)
    wanted = draw(st.sets(st.integers(0, n - 1), min_size=1))
    held = draw(st.sets(st.sampled_from(sorted(ran)))) if ran else set()
    lost = draw(st.sets(st.sampled_from(sorted(held)))) if held else set()
    return lineage(inputs, ran, held - lost, wanted), lost


@pytest.mark.extended
@settings(max_examples=EXAMPLES, derandomize=True)
@given(losses())
def test_the_set_computed_again_is_the_smallest_that_suffices(case):
    graph, lost = case
    found = recovery(graph, lost)
    assert set(found.again) == fewest(graph)
    assert set(found.spared) == lost - set(found.again)


@pytest.mark.parametrize(
    ("held", "lost", "again", "spared"),
    [
        # 0 and 1 are joined by 2, which 3 and 4 read; 4 has not run. 3 and 4 are wanted.
        ({2, 3}, set(), [], []),
        ({2}, {3}, [3], []),
        (set(), {2, 3}, [0, 1, 2, 3], []),
        ({3}, {2}, [0, 1, 2], []),
        ({0, 3}, {2}, [1, 2], []),
        ({2, 3}, {0}, [], [0]),
    ],
)
def test_examples(held, lost, again, spared):
    graph = lineage([[], [], [0, 1], [2], [2]], {0, 1, 2, 3}, held, {3, 4})
    found = recovery(graph, lost)
    assert (found.again, found.spared) == (again, spared)


def test_a_chain_of_a_hundred_thousand_does_not_recurse():
    n = 100_000
    graph = lineage([[]] + [[i] for i in range(n - 1)], range(n), set(), {n - 1})
    assert recovery(graph, {n - 1}).again == list(range(n))
