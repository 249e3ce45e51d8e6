from benchmarks.scheduler import pages
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
