"""Which graphs are needed for tasks that exist."""

from dask_marsched.core.living_graphs import drop_dead_keys


def test_a_graph_is_needed_until_its_last_task_is_gone():
    defined = {1: ["a", "b", "c"], 2: ["d"]}
    drop_dead_keys(defined, {"a", "b", "d"})
    assert defined == {1: ["a", "b"], 2: ["d"]}
    drop_dead_keys(defined, {"b"})
    assert defined == {1: ["a", "b"], 2: []}
    drop_dead_keys(defined, {"d"})
    assert defined == {1: [], 2: []}


def test_the_last_graph_that_defined_a_key_stands_for_it():
    defined = {number: ["a", "b", "c"] for number in (3, 1, 2)}
    drop_dead_keys(defined, {"a", "b", "c"})
    assert defined == {3: ["a", "b", "c"], 1: [], 2: []}


def test_a_graph_is_needed_for_what_no_later_one_has_defined():
    defined = {1: ["x", "same"], 2: ["same"], 3: ["y", "x"]}
    drop_dead_keys(defined, {"x", "y", "same"})
    assert defined == {1: [], 2: ["same"], 3: ["y", "x"]}
    defined = {1: ["kept", "same"], 2: ["same"]}
    drop_dead_keys(defined, {"kept", "same"})
    assert defined == {1: ["kept"], 2: ["same"]}


def test_graphs_that_are_computed_again_and_again_do_not_gather():
    defined = {}
    for number in range(100):
        defined[number] = [*range(number % 7), "other", "last"]
        drop_dead_keys(defined, {*range(7), "other", "last"})
        assert sum(map(bool, defined.values())) <= 8
