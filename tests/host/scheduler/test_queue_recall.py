"""Tiny tasks leave a worker that is stuck, and do not wander on while their inputs are fetched."""

import threading
from typing import Any

from distributed import wait
from distributed.utils_test import async_poll_for, captured_logger, gen_cluster, inc
from distributed.worker_state_machine import UnpauseEvent

from dask_marsched.host.contract import installed
from dask_marsched.host.scheduler import queue_recall
from dask_marsched.host.scheduler.queue_recall import QueueRecall

GATE = threading.Event()


def step(i: int, inputs: list[int]) -> int:
    return i


def wait_at_gate(inputs: list[int]) -> bool:
    return GATE.wait(20)


def fail(hook: str, error: Exception) -> None:
    raise error


@gen_cluster(
    client=True,
    nthreads=[("", 1)] * 2,
    config={"distributed.scheduler.work-stealing-interval": "1 hour"},
)
async def test_recalled_tasks_stay_while_their_inputs_are_fetched(
    c: Any, s: Any, a: Any, b: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(queue_recall, "_SETTLE", 60.0)
    GATE.clear()
    recall = QueueRecall(s, fail)
    inputs = c.map(inc, range(5), workers=a.address)
    await wait(inputs)
    state = type(b.state)
    monkeypatch.setattr(state, "_should_throttle_incoming_transfers", lambda self: True)
    slow = c.submit(wait_at_gate, inputs, workers=a.address)
    await async_poll_for(lambda: a.state.executing, 5)
    futures = c.map(step, range(10), inputs=inputs)
    await async_poll_for(lambda: len(s.workers[a.address].processing) == 11, 5)
    recall.check()
    recall.check()
    await async_poll_for(lambda: len(s.workers[b.address].processing) == 10, 5)
    asked = recall.recalled
    GATE.set()
    assert await slow
    for _ in range(3):
        recall.check()
    assert recall.recalled == asked
    monkeypatch.undo()
    b.handle_stimulus(UnpauseEvent(stimulus_id="it may fetch"))
    assert await c.gather(futures) == list(range(10))


@gen_cluster(nthreads=[], config={"distributed.scheduler.work-stealing": False})
async def test_without_work_stealing_nothing_is_recalled_and_nothing_to_warn_of(s: Any) -> None:
    with captured_logger("dask_marsched") as log:
        assert installed(QueueRecall(s, fail)) is None
    assert not log.getvalue()
