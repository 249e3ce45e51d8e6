"""Takes tasks and sends results, many in a message (see `dask_marsched.host.batched_messages`)."""

from __future__ import annotations

from typing import Any

from distributed.worker_state_machine import (
    ComputeTaskEvent,
    SendMessageToScheduler,
    TaskFinishedMsg,
)

from dask_marsched.host.batched_messages import COMPUTE, FINISHED, LEAST_TASKS, unpack_tasks


class _TasksFinished(SendMessageToScheduler):
    """Results of several tasks."""

    op = FINISHED
    __slots__ = ("messages",)

    def __init__(self, messages: list[TaskFinishedMsg]) -> None:
        self.messages = messages
        self.stimulus_id = messages[-1].stimulus_id

    def to_dict(self) -> dict[str, Any]:
        types: dict[tuple[bytes, str], int] = {}
        rows = [
            (
                m.key,
                m.run_id,
                m.nbytes,
                types.setdefault((m.type, m.typename), len(types)),
                m.metadata,
                m.thread,
                m.startstops,
            )
            for m in self.messages
        ]
        return {
            "op": FINISHED,
            "types": list(types),
            "rows": rows,
            "stimulus_id": self.stimulus_id,
        }


class BatchedMessages:
    """Receives batches of tasks, and packs results once the scheduler has sent such a batch."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self._understood = False
        worker.stream_handlers[COMPUTE] = self._compute

    def _compute(self, fields: list[str], tasks: list[tuple[list[Any], Any]]) -> None:
        self._understood = True
        self._worker.handle_stimulus(
            *(ComputeTaskEvent(**one) for one in unpack_tasks(fields, tasks))
        )

    def packed(self, instructions: list[Any]) -> list[Any]:
        """Return instructions with results that follow one another in one message."""
        if not self._understood or len(instructions) < LEAST_TASKS:
            return instructions
        found: list[Any] = []
        results: list[TaskFinishedMsg] = []
        for instruction in (*instructions, None):
            if isinstance(instruction, TaskFinishedMsg):
                results.append(instruction)
                continue
            found += results if len(results) < LEAST_TASKS else [_TasksFinished(results)]
            results = []
            found.append(instruction)
        return found[:-1]
