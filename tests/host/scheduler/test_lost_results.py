"""The smallest recovery from a loss, compared with all possible ones."""

import os
from itertools import chain, combinations

import pytest
from distributed.scheduler import TaskGroup, TaskPrefix, TaskState
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_marsched.host.scheduler.lost_results import smallest_recovery

#: ``MARSCHED_EXAMPLES=2000`` tries more graphs.
EXAMPLES = int(os.environ.get("MARSCHED_EXAMPLES", "300"))


def tasks_of(inputs, wanted) -> list[TaskState]:
    """Return tasks that read these numbers of each other."""
    group = TaskGroup("x", TaskPrefix("x"))
    tasks = [TaskState(str(i), None, "waiting", group, False) for i in range(len(inputs))]
    for i, own in enumerate(inputs):
        for j in own:
            tasks[i].add_dependency(tasks[j])
    for i in wanted:
        tasks[i].who_wants = {object()}
    return tasks


def recovery(inputs, gone, wanted) -> list[int]:
    """Return what has to run again if the results of `gone` are; no other task is to come."""
    tasks = tasks_of(inputs, wanted)
    for i in set(range(len(inputs))) - set(gone):
        tasks[i].state = "memory"
    return sorted(int(ts.key) for ts in smallest_recovery([tasks[i] for i in gone]))


def is_sufficient(inputs, gone, wanted, again) -> bool:
    """Whether all wanted results exist if exactly these operands are computed again."""
    there: list[bool] = []
    for i, own in enumerate(inputs):
        there.append(i not in gone or (i in again and all(there[j] for j in own)))
    return all(there[i] for i in wanted)


@st.composite
def losses(draw: st.DrawFn):
    """A graph, of which some results are gone and some are wanted."""
    n = draw(st.integers(1, 10))
    inputs = [
        sorted(draw(st.sets(st.integers(0, i - 1), max_size=3))) if i else [] for i in range(n)
    ]
    numbers = st.integers(0, n - 1)
    return inputs, draw(st.lists(numbers, unique=True)), draw(st.sets(numbers, min_size=1))


@pytest.mark.extended
@settings(max_examples=EXAMPLES, derandomize=True)
@given(losses())
def test_the_set_computed_again_is_the_smallest_that_suffices(case):
    inputs, gone, wanted = case
    subsets = chain.from_iterable(combinations(gone, k) for k in range(len(gone) + 1))
    sufficient = [set(s) for s in subsets if is_sufficient(inputs, gone, wanted, s)]
    smallest = [s for s in sufficient if len(s) == len(sufficient[0])]
    assert smallest == [set(recovery(inputs, gone, wanted))]


@pytest.mark.parametrize(
    ("gone", "again"),
    [
        # 0 and 1 are joined by 2, which 3 and 4 read. 3 and 4 are wanted.
        ([0, 1], []),
        ([3, 1, 0], [3]),
        ([0, 1, 2, 3], [0, 1, 2, 3]),
        ([4, 2, 1], [1, 2, 4]),
    ],
)
def test_examples(gone, again):
    assert recovery([[], [], [0, 1], [2], [2]], gone, {3, 4}) == again


def test_what_a_task_still_to_run_reads_is_needed():
    first, second = tasks_of([[], [0]], set())
    assert smallest_recovery([first]) == {first}
    second.state = "memory"
    assert smallest_recovery([first]) == set()


def test_a_chain_of_a_hundred_thousand_does_not_recurse():
    n = 100_000
    tasks = tasks_of([[]] + [[i] for i in range(n - 1)], {n - 1})
    assert smallest_recovery(tasks) == set(tasks)
