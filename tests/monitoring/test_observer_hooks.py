"""Transitions processed in batches and one by one give the same result."""

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_marsched.fallbacks.counters import Counters
from dask_marsched.monitoring.observer import Observer
from tests.graphs import graph

# What may follow what, of Dask's transitions.
AFTER = {
    "released": ("waiting", "forgotten"),
    "waiting": ("processing", "queued", "no-worker", "released", "erred"),
    "queued": ("processing", "released"),
    "no-worker": ("processing", "released"),
    "processing": ("memory", "erred", "released"),
    "memory": ("released",),
    "erred": ("released",),
}
WORKERS = [SimpleNamespace(address=f"tcp://127.0.0.1:{port}") for port in (1, 2, 3)]
OPERANDS = 6


class Run:
    """An observer of some operands, of which all but the last are in one graph or in two."""

    def __init__(self, overlap):
        self.clock = 0.0
        self.scheduler = SimpleNamespace(workers={}, tasks={})
        self.observer = Observer(self.scheduler, Counters(), lambda: self.clock, {})
        self.tasks = [
            SimpleNamespace(
                key=("x", i),
                state="released",
                nbytes=-1,
                processing_on=None,
                exception_blame=None,
                exception_text="ValueError: no",
            )
            for i in range(OPERANDS)
        ]
        parts = [self.tasks[:4], self.tasks[3 - overlap : 5]] if overlap else [self.tasks[:5]]
        for number, part in enumerate(parts):
            self.observer.arriving = number
            self.observer.planned(graph({f"{ts.key}": [] for ts in part}), part, [])
        self.observer.arrived(self.tasks)

    def move(self, i, finish, worker):
        ts = self.tasks[i]
        ts.state, ts.processing_on = finish, worker if finish == "processing" else None
        if finish == "memory":
            ts.nbytes = 8
        self.clock += 1.0
        self.observer.moved(ts, finish, "client-releases-keys-1")

    def told(self):
        found = self.observer.operand_counts()
        graphs = [self.observer.operand_counts(one["number"]) for one in self.observer.graphs()]
        assert self.observer.failure is None
        done = [(one["done"], one["finished"], one["counts"]) for one in self.observer.graphs()]
        workers = [sent_to(self.observer.plan(n)) for n in range(len(graphs))]
        return found["counts"], found["causes"], [g["causes"] for g in graphs], done, workers


def sent_to(plan):
    """Return the worker of each cell by name: what number it has tells when it was seen first."""
    return [plan["workers"][i] if i >= 0 else None for i in plan["cells"]["worker"]]


@st.composite
def moves(draw):
    state = ["released"] * OPERANDS
    found = []
    for _ in range(draw(st.integers(0, 60))):
        i = draw(st.integers(0, OPERANDS - 1))
        if state[i] == "forgotten":
            continue
        state[i] = draw(st.sampled_from(AFTER[state[i]]))
        found.append((i, state[i], draw(st.sampled_from(WORKERS))))
    return found


@pytest.mark.extended
@settings(max_examples=200, deadline=None)
@given(moves(), st.integers(0, 2))
def test_batches_give_the_same_result_as_single_transitions(moves, overlap):
    together, single = Run(overlap), Run(overlap)
    for move in moves:
        together.move(*move)
        single.move(*move)
        single.told()
    one, other = together.told(), single.told()
    # When a graph was done is known to the last result of what is gone through together.
    assert [graph[0] for graph in one[3]] == [graph[0] for graph in other[3]]
    assert one[:3] == other[:3]
    assert [graph[2] for graph in one[3]] == [graph[2] for graph in other[3]]
    assert one[4] == other[4]
