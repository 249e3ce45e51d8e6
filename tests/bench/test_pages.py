from dask_marsched.bench import pages
from dask_marsched.dashboard.pages import PANES


def test_each_page_is_looked_at_in_the_middle_of_a_run():
    tasks, costs, steps = pages.page_costs(400)
    assert tasks >= 300
    assert [cost.page for cost in costs] == [kind.name for kind in PANES]
    assert all(len(cost.totals()) >= 10 for cost in costs)
    assert len(steps) == 1
    table = pages.cost_cells(costs, steps)
    assert len(table) == 2 + len(PANES)
    # the plan changes all the time: something was sent
    assert max(costs[0].kilobytes) > 1


def test_the_share_of_the_observer():
    assert 0 < pages.share(200) < 0.5


def test_the_observer_is_compared_in_pairs():
    pairs = pages.throughput(100, 2)
    assert len(pairs) == 2
    assert all(seconds > 0 for pair in pairs for seconds in pair)
    head, row = pages.throughput_cells([(1.0, 1.0), (0.98, 1.0), (0.9, 1.0)])
    assert dict(zip(head, row, strict=True))["throughput"] == "0.980"
    assert row[-1] == "met"
