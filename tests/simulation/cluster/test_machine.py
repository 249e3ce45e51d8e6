import pytest

from dask_marsched.simulation.cluster.clock import EPOCH, EventQueue
from dask_marsched.simulation.cluster.machine import Cores, Link, transfer


def ends(count, jobs):
    """Return when each of ``(start, seconds)`` ends on a host with ``count`` cores."""
    queue = EventQueue()
    cores = Cores(queue, count)
    done = {}

    def finished(name):
        done[name] = queue.now - EPOCH

    for name, (start, seconds) in enumerate(jobs):
        queue.after(start, cores.run, seconds, lambda name=name: finished(name))
    while len(queue):
        queue.step()
    return [done[name] for name in range(len(jobs))]


@pytest.mark.parametrize(
    ("count", "jobs", "expected"),
    [
        (None, [(0, 1), (0, 1), (0, 1)], [1, 1, 1]),
        (2, [(0, 1), (0, 1)], [1, 1]),
        (1, [(0, 1), (0, 1)], [2, 2]),
        (2, [(0, 1), (0, 1), (0, 1), (0, 1)], [2, 2, 2, 2]),
        # the second takes half of the core from t=1 on, until the first is done at t=3
        (1, [(0, 2), (1, 2)], [3, 4]),
        (1, [(0, 1), (5, 1)], [1, 6]),
        (1, [(0, 0)], [0]),
    ],
)
def test_cores_are_shared_equally(count, jobs, expected):
    assert ends(count, jobs) == pytest.approx(expected)


def test_work_is_conserved():
    jobs = [(0.1 * i, 0.5 + 0.01 * i) for i in range(20)]
    assert max(ends(2, jobs)) == pytest.approx(sum(seconds for _, seconds in jobs) / 2, rel=0.1)


def test_transfers_queue_at_both_ends():
    a_out, b_out, c_in, d_in = (Link(100.0) for _ in range(4))
    assert transfer(a_out, c_in, 100, now=0.0) == (0.0, 1.0)
    assert transfer(a_out, d_in, 100, now=0.0) == (1.0, 2.0)  # the sender is busy
    assert transfer(b_out, c_in, 100, now=0.0) == (1.0, 2.0)  # the receiver is busy
    assert transfer(b_out, c_in, 0, now=5.0) == (5.0, 5.0)


def test_the_slower_link_decides():
    assert transfer(Link(100.0), Link(50.0), 100, now=0.0) == (0.0, 2.0)


def test_jobs_of_an_owner_that_died_take_no_cores():
    queue = EventQueue()
    cores, found = Cores(queue, 1), []
    cores.run(10, lambda: found.append("dead"), "dead")
    cores.run(2, lambda: found.append(queue.now - EPOCH), "alive")
    queue.after(2, cores.abort, "dead")  # the other one has had half of the core
    while len(queue):
        queue.step()
    assert found == pytest.approx([3])
