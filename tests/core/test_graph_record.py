from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from dask_marsched.core import graph_record
from dask_marsched.core.graph import Edges, OperandGraph
from dask_marsched.core.graph_record import (
    CODES,
    FATAL,
    FINISHED,
    FREED,
    NO_WORKER,
    SENT,
    WAITING,
    Causes,
    GraphArrays,
    GraphRecord,
    counts_by_state,
)
from dask_marsched.core.operand import State
from dask_marsched.core.plan import Unit


def record(n=4, units=((0, 1), (2, 3))):
    graph = OperandGraph(range(n), Edges.of([[]] * n), [8.0] * n, b"\1" * n)
    return GraphRecord(
        0, 10.0, GraphArrays.of(graph), [Unit(tuple(u)) for u in units], [WAITING] * n
    )


def test_counts_follow_transitions():
    found = record()
    assert (found.operands, found.units()) == (4, (2, 4))
    found.set_code(0, SENT)
    found.set_code(0, SENT)
    found.set_code(1, FINISHED)
    assert found.counts[WAITING] == 2
    assert found.counts[SENT] == 1
    assert found.left
    for i in range(4):
        found.set_code(i, FREED)
    assert not found.left


def test_all_states_are_counted_and_only_running_operands_run():
    counts = [0] * CODES
    counts[SENT] = 5
    assert set(counts_by_state(counts, 2)) == {state.value for state in State}
    assert counts_by_state(counts, 2)["running"] == 2
    assert counts_by_state(counts, 2)["ready"] == 3
    # heartbeats are late
    assert counts_by_state(counts, 9)["running"] == 5
    assert counts_by_state(counts, 9)["ready"] == 0


def test_planning_again_replaces_units_and_picture():
    found = record()
    before = found.layout(10)
    found.plan_again([Unit((2,)), Unit((3,))])
    assert found.units() == (3, 4)
    assert found.replanned == 1
    assert found.layout(10) is not before


def drawn(found, most=10):
    layout = found.layout(most)
    while not layout.advance(3):
        pass
    return layout


def test_a_cell_has_the_worker_of_most_of_its_operands():
    found = record(6, ((0, 1, 2), (3, 4, 5)))
    layout = drawn(found, most=2)
    assert found.cells(layout)[1].tolist() == [NO_WORKER, NO_WORKER]
    for i, worker in ((0, 7), (1, 8), (2, 8), (3, 9)):
        found.worker_of[i] = worker
        found.set_code(i, SENT)
    by_code, worker, share = found.cells(layout)
    assert by_code[:, SENT].tolist() == [3, 1]
    assert worker.tolist() == [8, 9]
    assert share.tolist() == [2 / 3, 1.0]


def test_workers_beyond_the_limit_count_as_others():
    found = record()
    found.worker_of[0] = 5000
    found.set_code(0, SENT)
    assert found.cells(drawn(found))[1].tolist()[0] == graph_record.MOST_WORKERS - 1


steps = st.lists(
    st.tuples(st.integers(0, 19), st.integers(0, CODES - 1), st.integers(0, 200)), max_size=80
)


@given(steps, st.integers(1, 30))
def test_cells_agree_with_the_codes_and_workers_of_their_operands(steps, most):
    found = record(20, [range(10), range(10, 20)])
    layout = drawn(found, most)
    for i, code, worker in steps:
        if code == SENT != found.codes[i]:
            found.worker_of[i] = worker
        found.set_code(i, code)
    by_code, worker, share = found.cells(layout)
    assert by_code.sum(0).tolist() == found.counts
    for cell in range(len(by_code)):
        members = [i for i in range(20) if layout.cell_of[i] == cell]
        assert by_code[cell].tolist() == [
            sum(found.codes[i] == code for i in members) for code in range(CODES)
        ]
        sent = [w for i in members if (w := found.worker_of[i]) != NO_WORKER]
        workers = Counter(min(w, graph_record.MOST_WORKERS - 1) for w in sent)
        assert (worker[cell] == NO_WORKER) == (not workers)
        if workers:
            best = min(workers, key=lambda w: (-workers[w], w))
            assert (worker[cell], share[cell]) == (best, workers[best] / len(sent))


def test_causes_are_counted_and_bounded():
    causes = Causes()
    for i in range(100):
        causes.add("fatal", f"op{i}", "ZeroDivisionError")
    causes.add("fatal", "op0", "ZeroDivisionError")
    rows = causes.to_list()
    assert rows[0] == {
        "state": "fatal", "operand": "op0", "cause": "ZeroDivisionError", "count": 2,
    }  # fmt: skip
    assert len(rows) == 21
    assert sum(row["count"] for row in rows) == 101
    assert Causes.joined([causes, causes]).to_list()[0]["count"] == 4


def test_fatal_is_done():
    found = record(2, ((0, 1),))
    found.set_code(0, FATAL)
    found.set_code(1, FATAL)
    assert not found.left
