"""How much time the choice among plans may take, by what it can win."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from dask_marsched.core.graph import OperandGraph
from dask_marsched.core.plan import WorkerSlot
from dask_marsched.policies.planning.forecast import LINK

#: A search that takes a larger part of what is at stake is not worth its processor time.
_WORTH_IT = 0.2
#: What a graph waits for at most: this part of what is at stake, and so many seconds. What workers
#: open meanwhile is not planned again: with 0.01 s a climatology of 739 tasks, of 7 s, held 1.12 of
#: stock Dask's memory instead of 0.85 to 0.99.
_WAITS, _LONGEST = 0.03, 0.2


class Search(Enum):
    """What is done to choose among plans."""

    #: Nothing: the prompt plan stays.
    NONE = "none"
    #: The graph waits for it.
    BEFORE_START = "now"
    #: The prompt plan is in force until the search ends, in a thread.
    IN_BACKGROUND = "beside"


def seconds_at_stake(graph: OperandGraph, workers: Sequence[WorkerSlot]) -> float:
    """Return how long it would take the workers to fetch each result once.

    A plan decides on what moves, and on what is held meanwhile; this bounds both.
    """
    return sum(graph.nbytes) / (LINK * max(1, len(workers)))


def extent_of_search(effort: float, at_stake: float) -> Search:
    """Return how to choose among plans.

    Parameters
    ----------
    effort
        Seconds that the search takes.
    at_stake
        Seconds that the best plan can save against the worst.
    """
    if effort <= min(_LONGEST, _WAITS * at_stake):
        return Search.BEFORE_START
    return Search.IN_BACKGROUND if effort <= _WORTH_IT * at_stake else Search.NONE
