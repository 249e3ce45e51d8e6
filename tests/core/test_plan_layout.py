import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dask_marsched.core.graph import Edges
from dask_marsched.core.plan_layout import NO_UNIT, PlanLayout


def layout(inputs, units, most=2000, step=10_000):
    """Lay out a graph given by the inputs of each operand and units of operands."""
    edges = Edges.of(inputs)
    unit_of = np.full(len(inputs), NO_UNIT, dtype=np.int32)
    for unit in units:
        unit_of[list(unit)] = unit[0]
    starts, flat = (np.array(x, dtype=np.int32) for x in (edges.starts, edges.flat))
    found = PlanLayout(starts, flat, unit_of, most)
    while not found.advance(step):
        pass
    return found


def test_an_operand_is_right_of_its_inputs():
    found = layout([[], [], [0, 1], [], [2, 3]], [[0, 1], [3]])
    assert found.column.tolist() == [0, 0, 1, 0, 2]
    assert (found.columns, found.rows, found.depth) == (3, 3, 3)


def test_units_stand_below_each_other_in_their_order():
    found = layout([[], [], [], []], [[0, 2], [1, 3]])
    assert found.row.tolist() == [0, 2, 1, 3]


def test_a_join_of_all_is_in_the_middle():
    found = layout([[], [], [], [], [0, 1, 2, 3]], [[0], [1], [2], [3]])
    assert found.row[4] == found.rows // 2


def test_no_operands():
    found = layout([], [])
    assert found.done
    assert found.share == 1.0
    assert (found.columns, found.rows, len(found.cell_of)) == (0, 0, 0)


def test_a_large_graph_shares_cells():
    n = 1000
    inputs = [[] for _ in range(n)] + [[i] for i in range(n)]
    found = layout(inputs, [[i] for i in range(n)], most=100)
    assert found.columns == 2
    assert found.rows == 40
    assert len(found.column) == 80
    assert np.bincount(found.cell_of).tolist() == [25] * 80


def test_inputs_may_be_in_an_earlier_slice():
    inputs = [[], [0], [1], [0, 2], [3], [4, 1]]
    assert layout(inputs, [[0]], step=2).column.tolist() == [0, 1, 2, 3, 4, 5]


@st.composite
def graphs(draw):
    n = draw(st.integers(1, 60))
    inputs = [
        sorted(draw(st.sets(st.integers(0, i - 1), max_size=3))) if i else [] for i in range(n)
    ]
    initial = [i for i in range(n) if not inputs[i]]
    cut = draw(st.integers(1, len(initial)))
    return inputs, [initial[k::cut] for k in range(cut)]


@given(graphs(), st.integers(1, 80), st.integers(1, 70))
def test_cells_are_bounded_and_columns_follow_depth(graph, most, step):
    inputs, units = graph
    found = layout(inputs, units, most, step)
    assert 1 <= len(found.column) <= most
    assert len(found.cell_of) == len(inputs)
    assert set(found.cell_of.tolist()) == set(range(len(found.column)))
    assert found.column.max() < found.columns
    assert found.row.max() < found.rows
    column = found.column[found.cell_of]
    for i, own in enumerate(inputs):
        assert all(column[j] <= column[i] for j in own)


@given(graphs(), st.integers(1, 80))
def test_steps_make_no_difference(graph, most):
    inputs, units = graph
    at_once, in_steps = layout(inputs, units, most), layout(inputs, units, most, step=1)
    assert at_once.cell_of.tolist() == in_steps.cell_of.tolist()
    assert at_once.row.tolist() == in_steps.row.tolist()
