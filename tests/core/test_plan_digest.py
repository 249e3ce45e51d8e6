"""Digests of graphs: the same for the same structure, another one for anything that counts."""

import dataclasses

import pytest
from hypothesis import given

from dask_marsched.core.graph import Edges, OperandGraph
from dask_marsched.core.plan import WorkerSlot
from dask_marsched.scheduling.plan_finder import plan_digest
from tests.graphs import operand_graphs

WORKERS = [WorkerSlot("tcp://a", 2, 100), WorkerSlot("tcp://b", 2, 100)]


def products(name: str = "x-1", **changes: object) -> OperandGraph:
    given = {
        "keys": [(name, 0), (name, 1), "total"],
        "inputs": Edges.of([[], [], [0, 1]]),
        "nbytes": [8.0, 8.0, 4.0],
        "known": b"\1\1\1",
    }
    return OperandGraph(**(given | changes))  # type: ignore[arg-type]  # whatever a test changes


def digest(
    g: OperandGraph, workers: list[WorkerSlot] = WORKERS, pending: tuple[int, ...] = (0, 1)
) -> int:
    return plan_digest(g, workers, set(pending))


def test_names_and_addresses_do_not_count() -> None:
    moved = [dataclasses.replace(w, address=w.address + "2") for w in WORKERS]
    assert digest(products("x-2"), moved) == digest(products())


@pytest.mark.parametrize(
    "changes",
    [
        {"keys": [("x", 0), ("y", 1), "total"]},
        {"keys": [("x", 0), ("x", 2), "total"]},
        {"inputs": Edges.of([[], [], [1]])},
        {"inputs": Edges.of([[], [0], [1]])},
        {"nbytes": [8.0, 9.0, 4.0]},
        {"known": b"\1\0\1"},
        {"home": [0, 1, -1], "home_bytes": [0.0, 0.0, 0.0]},
        {"home_bytes": [0.0, 0.0, 1.0], "home": [-1, -1, -1]},
        {"kept": frozenset({1})},
        {"pieces": frozenset({1})},
    ],
)
def test_everything_in_a_graph_counts(changes: dict[str, object]) -> None:
    assert digest(products(**changes)) != digest(products())


def test_workers_and_pending_operands_are_part_of_the_digest() -> None:
    g = products()
    others = [
        WORKERS[:1],
        [WORKERS[0], dataclasses.replace(WORKERS[1], nthreads=3)],
        [WORKERS[0], dataclasses.replace(WORKERS[1], host="other")],
        [WORKERS[0], dataclasses.replace(WORKERS[1], bound=1)],
    ]
    found = {digest(g), *(digest(g, slots) for slots in others)}
    found |= {digest(g, pending=p) for p in ((0,), (1,), (), (0, 1, 2))}
    assert len(found) == 9


@given(operand_graphs())
def test_a_copy_has_the_same_digest(g: OperandGraph) -> None:
    copy = g.with_nbytes(list(g.nbytes), bytes(g.known))
    assert digest(copy, pending=tuple(g)) == digest(g, pending=tuple(g))
