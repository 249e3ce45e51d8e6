from dask_marsched.simulation.cluster.clock import EPOCH, EventQueue
from dask_marsched.simulation.cluster.comms import BatchedStream
from dask_marsched.simulation.cluster.machine import Cores, EventLoop


def stream(queue, got, interval=0.005, latency=0.001):
    def deliver(batch):
        got.append((queue.now - EPOCH, batch))

    loop = EventLoop(queue, Cores(queue, None))
    return BatchedStream(queue, interval, latency, deliver, loop, cost=0.0)


def run(queue):
    while len(queue):
        queue.step()


def rounded(got):
    return [(round(when, 6), [message["n"] for message in batch]) for when, batch in got]


def test_the_first_message_leaves_at_once_and_the_rest_wait_for_the_interval():
    queue, got = EventQueue(), []
    comm = stream(queue, got)
    for n, when in enumerate((0.0, 0.001, 0.002, 0.02)):
        queue.after(when, comm.send, {"n": n})
    run(queue)
    assert rounded(got) == [(0.001, [0]), (0.006, [1, 2]), (0.021, [3])]


def test_messages_of_the_same_moment_travel_together():
    queue, got = EventQueue(), []
    comm = stream(queue, got)
    comm.send({"n": 0}, {"n": 1})
    comm.send({"n": 2})
    run(queue)
    assert rounded(got) == [(0.001, [0, 1, 2])]


def test_nothing_arrives_after_abort():
    queue, got = EventQueue(), []
    comm = stream(queue, got)
    comm.send({"n": 0})
    assert not comm.closed()
    comm.abort()
    comm.send({"n": 1})
    run(queue)
    assert got == []
    assert comm.closed()
