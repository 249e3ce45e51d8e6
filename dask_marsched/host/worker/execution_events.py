"""Makes the event that ends the execution of a task, as `distributed.Worker.execute` does."""

from __future__ import annotations

import logging
from typing import Any

from distributed import Reschedule, Worker
from distributed.metrics import time
from distributed.worker_state_machine import (
    ExecuteFailureEvent,
    ExecuteSuccessEvent,
    RescheduleEvent,
    StateMachineEvent,
    TaskState,
)

#: distributed's, where a user looks for failed tasks.
logger = logging.getLogger("distributed.worker")


def event_of(worker: Worker, ts: TaskState, run_id: int, result: Any) -> StateMachineEvent:
    """Return the event for what `distributed.worker._run_task` has returned for a task."""
    key, start, stop = ts.key, result["start"], result["stop"]
    worker.threads[key] = result["thread"]
    if result["op"] == "task-finished":
        if worker.digests is not None:
            worker.digests["task-duration"].add(max(0, stop - start))
        return ExecuteSuccessEvent(
            key=key,
            run_id=run_id,
            value=result["result"],
            start=start,
            stop=stop,
            nbytes=result["nbytes"],
            type=result["type"],
            stimulus_id=f"task-finished-{time()}",
        )
    if isinstance(result["actual_exception"], Reschedule):
        return RescheduleEvent(key=key, stimulus_id=f"reschedule-{time()}")
    if ts.state in ("executing", "long-running", "resumed"):
        try:
            shown = repr(ts.run_spec)[:1000]
        except Exception as error:
            logger.exception("Exception during execution of task %r", key)
            return ExecuteFailureEvent.from_exception(
                error, key=key, run_id=run_id, stimulus_id=f"execute-unknown-error-{time()}"
            )
        logger.error(
            "Compute Failed\nKey:       %s\nState:     %s\nTask:  %s\n"
            "Exception: %r\nTraceback: %r\n",
            key,
            ts.state,
            shown,
            result["exception_text"],
            result["traceback_text"],
        )
    return ExecuteFailureEvent.from_exception(
        result,
        key=key,
        run_id=run_id,
        start=start,
        stop=stop,
        stimulus_id=f"task-erred-{time()}",
    )
