"""A task that is cancelled and sent again before its execution has begun."""

from dask._task_spec import Task, TaskRef
from distributed import wait
from distributed.utils_test import async_poll_for, inc
from distributed.worker_state_machine import ComputeTaskEvent, FreeKeysEvent

from tests.harness import planned_cluster


def asked_for(worker, run_id):
    event = ComputeTaskEvent.dummy(
        "reads", who_has={"input": [worker.address]}, run_id=run_id, stimulus_id=f"run-{run_id}"
    )
    event.run_spec = Task("reads", inc, TaskRef("input"))
    return event


@planned_cluster([("127.0.0.1", 1)])
async def test_it_is_scheduled_again_rather_than_failed_when_its_input_is_gone(c, s, a):
    kept = c.submit(inc, 1, key="input")
    await wait(kept)
    # All of it comes in one batch, as after a while in which the worker's process was stopped.
    a.handle_stimulus(
        asked_for(a, 1),
        FreeKeysEvent(keys=["reads"], stimulus_id="cancel-key"),
        FreeKeysEvent(keys=["input"], stimulus_id="no longer needed"),
        asked_for(a, 2),
    )
    assert a.state.tasks["reads"].state == "executing"
    assert "input" not in a.data
    await async_poll_for(
        lambda: "reads" not in a.state.tasks or a.state.tasks["reads"].state != "executing", 5
    )
    assert any("rescheduled" in row for row in a.state.story("reads"))
    assert not any("error" in row for row in a.state.story("reads"))
