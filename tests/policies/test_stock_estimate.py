from dask_marsched.core.plan import Unit
from dask_marsched.monitoring.stock_estimates import estimate
from tests.graphs import pairwise


def test_stock_moves_pairs_that_a_plan_keeps_together():
    graph = pairwise(40)
    pairs = [Unit((3 * i, 3 * i + 1)) for i in range(40)]
    found = estimate(graph, pairs, [1] * 4)
    assert found["plan"] == 0.0
    assert found["stock"] > 0.0
    assert (found["operands"], found["known_sizes"]) == (120, 1.0)


def test_an_empty_graph():
    assert estimate(pairwise(0), [], [1])["operands"] == 0
