import pytest

from dask_marsched.simulation.cluster.clock import EPOCH, EventQueue


def test_events_run_in_order_of_time_then_of_addition():
    queue, seen = EventQueue(), []
    queue.after(2.0, seen.append, "late")
    queue.after(1.0, seen.append, "first")
    queue.after(1.0, seen.append, "second")
    while len(queue):
        queue.step()
    assert seen == ["first", "second", "late"]
    assert queue.now == EPOCH + 2.0


def test_an_event_in_the_past_runs_now_and_time_never_goes_back():
    queue, times = EventQueue(), []
    queue.after(1.0, lambda: queue.at(EPOCH, lambda: times.append(queue.now)))
    queue.step()
    queue.step()
    assert times == [EPOCH + 1.0]


def test_a_cancelled_event_does_nothing():
    queue, seen = EventQueue(), []
    queue.cancel(queue.after(1.0, seen.append, 1))
    queue.step()
    assert seen == []


def test_only_what_is_not_periodic_counts_as_essential():
    queue = EventQueue()
    queue.after(1.0, lambda: None, daemon=True)
    assert queue.essential == 0
    queue.after(2.0, lambda: None)
    assert queue.essential == 1
    queue.step()
    queue.step()
    assert queue.essential == 0


def test_step_on_an_empty_queue_raises():
    with pytest.raises(IndexError):
        EventQueue().step()
