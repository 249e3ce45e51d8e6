import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_marsched.simulation.cluster.clock import EPOCH, EventQueue
from dask_marsched.simulation.cluster.machine import Cores
from dask_marsched.simulation.costs.recorded import costs_of, seconds_on_own_core

JOBS = st.lists(st.tuples(st.floats(0.0, 1.0), st.floats(0.001, 1.0)), min_size=1, max_size=12)


@given(jobs=JOBS, cores=st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_it_is_the_inverse_of_what_the_twin_does_to_tasks_on_few_cores(jobs, cores):
    queue = EventQueue()
    shared = Cores(queue, cores)
    starts, stops = {}, {}

    def begin(number, seconds):
        starts[number] = queue.now - EPOCH
        shared.run(seconds, lambda: stops.setdefault(number, queue.now - EPOCH))

    for number, (start, seconds) in enumerate(jobs):
        queue.at(EPOCH + start, begin, number, seconds)
    while len(stops) < len(jobs):
        queue.step()
    order = sorted(starts)
    taken = seconds_on_own_core(
        np.array([starts[n] for n in order]), np.array([stops[n] for n in order]), cores
    )
    assert taken == pytest.approx([seconds for _, seconds in jobs], abs=1e-6)


def test_tasks_of_different_hosts_do_not_share_cores():
    executions = {
        "key": ["a", "b", "c"],
        "worker": ["tcp://10.0.0.1:1", "tcp://10.0.0.1:2", "tcp://10.0.0.2:1"],
        "start": [0.0, 0.0, 0.0],
        "stop": [2.0, 2.0, 2.0],
        "nbytes": [1, 2, 3],
        "input_nbytes": [0, 0, 0],
        "joined": [()] * 3,
    }
    costs = costs_of(executions, {"10.0.0.1": 1, "10.0.0.2": 1})
    assert costs.seconds == pytest.approx({"a": 1.0, "b": 1.0, "c": 2.0})
    unknown = costs_of(executions, {})
    assert unknown.seconds == {"a": 2.0, "b": 2.0, "c": 2.0}


def test_a_task_that_ran_twice_counts_with_its_mean_duration_and_its_last_size():
    executions = {
        "key": ["a", "a"],
        "worker": ["tcp://10.0.0.1:1"] * 2,
        "start": [0.0, 5.0],
        "stop": [1.0, 8.0],
        "nbytes": [10, 20],
        "input_nbytes": [1, 2],
        "joined": [()] * 2,
    }
    costs = costs_of(executions, {})
    assert costs.nbytes == {"a": 20}
    assert costs.seconds == {"a": 2.0}
    assert costs.input_nbytes == {"a": 2}


def test_of_nothing_there_are_no_costs():
    empty = {
        name: [] for name in ("key", "worker", "start", "stop", "nbytes", "input_nbytes", "joined")
    }
    assert costs_of(empty, {}).nbytes == {}


def one_thread(ran, waited):
    executions = {
        "key": ["a", "b"],
        "worker": ["tcp://10.0.0.1:1"] * 2,
        "thread": [7, 7],
        "start": [0.0, 2.0],
        "stop": [1.0, 5.0],
        "nbytes": [1, 1],
        "input_nbytes": [0, 0],
        "joined": [()] * 2,
    }
    return costs_of(executions, {}, {"tcp://10.0.0.1:1": {7: (ran, waited)}}).seconds


def test_what_a_thread_waited_for_a_core_does_not_count():
    assert one_thread(ran=1.0, waited=3.0) == pytest.approx({"a": 0.25, "b": 0.75})


def test_what_a_thread_slept_counts():
    assert one_thread(ran=0.1, waited=0.0) == pytest.approx({"a": 1.0, "b": 3.0})
    assert one_thread(ran=0.1, waited=2.0) == pytest.approx({"a": 0.5, "b": 1.5})


def test_what_a_thread_ran_besides_its_tasks_does_not_make_them_longer():
    assert one_thread(ran=9.0, waited=1.0) == pytest.approx({"a": 1.0, "b": 3.0})
