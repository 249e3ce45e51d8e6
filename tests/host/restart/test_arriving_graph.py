"""What a graph defines that the scheduler reads."""

from types import SimpleNamespace

from dask_marsched.host.restart.arriving_graph import ArrivingGraph
from dask_marsched.host.restart.process import NO_RUN

DEFINED, DATA = SimpleNamespace(run_spec="spec"), SimpleNamespace(run_spec=None)


class Tasks(dict):
    """The tasks of a scheduler, too many to look at all of them."""

    def __iter__(self):
        raise AssertionError


def test_a_small_graph_costs_the_same_with_many_tasks_on_the_scheduler():
    graph = ArrivingGraph(1)
    graph.is_about_to_define({"new": "node", "old": "node"}, Tasks(old=DEFINED), ())
    assert graph.defined == {"new"}
    assert graph.first_run != NO_RUN


def test_data_that_a_graph_defines_may_be_older_than_the_graph():
    graph = ArrivingGraph(1)
    graph.is_about_to_define({"data": "node", "unknown": "node"}, Tasks(data=DATA), ())
    assert graph.defined == {"data", "unknown"}
    assert graph.first_run == NO_RUN
