"""Decides how much time a search for a better plan may take."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from dask_marsched.core.graph import OperandGraph
from dask_marsched.core.plan import WorkerSlot
from dask_marsched.policies.planning.forecast import LINK

#: A search may take this part of the seconds at stake.
_WORTH_IT = 0.2
#: A graph waits for a search that takes at most this part of the seconds at stake, and this many
#: seconds. Units opened before a search ends are not planned again: with 0.01 s a climatology of
#: 739 tasks held 1.12 of stock Dask's memory instead of 0.85 to 0.99.
_WAITS, _LONGEST = 0.03, 0.2


class Search(Enum):
    """When to search for a better plan than the prompt one."""

    #: Not at all: the prompt plan stays.
    NONE = "none"
    #: Before the graph starts.
    BEFORE_START = "now"
    #: In a thread, while the prompt plan is in use.
    IN_BACKGROUND = "beside"


def seconds_at_stake(graph: OperandGraph, workers: Sequence[WorkerSlot]) -> float:
    """Return how long the workers would take to fetch each result once.

    This bounds the time that a plan can save on transfers.
    """
    return sum(graph.nbytes) / (LINK * max(1, len(workers)))


def extent_of_search(effort: float, at_stake: float) -> Search:
    """Return when to search, if the search takes `effort` seconds and saves `at_stake` at most."""
    if effort <= min(_LONGEST, _WAITS * at_stake):
        return Search.BEFORE_START
    return Search.IN_BACKGROUND if effort <= _WORTH_IT * at_stake else Search.NONE
