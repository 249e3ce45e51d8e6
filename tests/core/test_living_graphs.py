"""Which graphs are needed for tasks that exist."""

import random

from dask_marsched.core.living_graphs import LivingGraphs


def living(defined, tasks):
    graphs = LivingGraphs()
    for number, keys in defined.items():
        graphs.add(number, keys)
    list(graphs.settle(tasks))
    return graphs


def left(graphs, numbers):
    return {number: graphs.keys_of(number) for number in numbers}


def test_a_graph_is_needed_until_its_last_task_is_gone():
    graphs = living({1: ["a", "b", "c"], 2: ["d"]}, {"a", "b", "d"})
    assert left(graphs, (1, 2)) == {1: ["a", "b"], 2: ["d"]}
    for key in ("a", "d"):
        graphs.forgotten(key)
    assert list(graphs.settle({"b"})) == [2]
    assert left(graphs, (1, 2)) == {1: ["a", "b"], 2: []}
    graphs.forgotten("b")
    assert list(graphs.settle(set())) == [1]
    assert left(graphs, (1, 2)) == {1: [], 2: []}


def test_the_last_graph_that_defined_a_key_stands_for_it():
    graphs = living({number: ["a", "b", "c"] for number in (3, 1, 2)}, {"a", "b", "c"})
    assert left(graphs, (1, 2, 3)) == {3: ["a", "b", "c"], 1: [], 2: []}


def test_a_graph_is_needed_for_what_no_later_one_has_defined():
    graphs = living({1: ["x", "same"], 2: ["same"], 3: ["y", "x"]}, {"x", "y", "same"})
    assert left(graphs, (1, 2, 3)) == {1: [], 2: ["same"], 3: ["y", "x"]}
    graphs = living({1: ["kept", "same"], 2: ["same"]}, {"kept", "same"})
    assert left(graphs, (1, 2)) == {1: ["kept"], 2: ["same"]}


def test_graphs_that_are_computed_again_and_again_do_not_gather():
    graphs = LivingGraphs()
    for number in range(100):
        graphs.add(number, [*range(number % 7), "other", "last"])
        list(graphs.settle({*range(7), "other", "last"}))
        assert sum(map(bool, left(graphs, range(100)).values())) <= 8


def test_a_key_that_is_used_again_at_once_keeps_only_the_last_graph():
    graphs = living({1: ["key"]}, {"key"})
    graphs.forgotten("key")
    graphs.add(2, ["key"])
    assert sorted(graphs.settle({"key"})) == [1, 2]
    assert left(graphs, (1, 2)) == {1: [], 2: ["key"]}


def test_nothing_is_looked_at_where_no_task_is_gone():
    class Tasks:
        def __contains__(self, key):
            raise AssertionError(key)

    graphs = living({number: [number] for number in range(10)}, range(10))
    assert list(graphs.settle(Tasks())) == []
    graphs.forgotten("another")
    assert list(graphs.settle(Tasks())) == []


def test_a_search_that_was_stopped_goes_on():
    graphs = living({number: [number] for number in range(10)}, range(10))
    for key in range(10):
        graphs.forgotten(key)
    search = graphs.settle(())
    found = [next(search), next(search)]
    search.close()
    assert sorted([*found, *graphs.settle(())]) == list(range(10))


def test_a_graph_whose_task_is_there_is_never_lost_and_without_tasks_all_are_found():
    chance = random.Random(0)
    for _ in range(200):
        graphs, owner = LivingGraphs(), {}  # the graph that has defined each task
        for number in range(30):
            keys = chance.sample(range(12), chance.randint(0, 4))
            own = [key for key in keys if key not in owner]
            owner |= dict.fromkeys(own, number)
            graphs.add(number, own)
            for key in chance.sample(sorted(owner), chance.randint(0, len(owner))):
                del owner[key]
                graphs.forgotten(key)
            if chance.random() < 0.5:
                list(graphs.settle(owner))
            for key, definer in owner.items():
                assert key in graphs.keys_of(definer)
        for key in list(owner):
            del owner[key]
            graphs.forgotten(key)
        list(graphs.settle(owner))
        assert not any(left(graphs, range(30)).values())
