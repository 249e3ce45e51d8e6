"""Sends tasks to workers, many in a message (see `dask_marsched.host.batched_messages`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from distributed.scheduler import Scheduler

from dask_marsched.host.batched_messages import FINISHED, LEAST_TASKS, pack_tasks

#: The metric of workers (see `dask_marsched.worker.heartbeat_metrics`), and the part that runs
#: tasks in a row.
_METRIC, _PART = "marsched", "runs"


class BatchedMessages:
    """Packs messages to workers that unpack them, and handles results that come together."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler: Any = scheduler

    def accept(self) -> None:
        """Accept results that come together, from now on and for good."""
        self._scheduler.stream_handlers[FINISHED] = self._finished

    def packed(self, worker_msgs: dict[str, list[Any]]) -> dict[str, list[Any]]:
        """Return messages by worker, with tasks that go to the same one in one message."""
        workers = self._scheduler.workers
        return {
            worker: pack_tasks(messages)
            if len(messages) >= LEAST_TASKS
            and (ws := workers.get(worker)) is not None
            and _PART in (ws.metrics.get(_METRIC) or ())
            else messages
            for worker, messages in worker_msgs.items()
        }

    def _finished(
        self, worker: str, types: list[Any], rows: Iterable[Any], stimulus_id: str
    ) -> None:
        """Handle results like `Scheduler.handle_task_finished`, and dispatch once."""
        s = self._scheduler
        if worker not in s.workers:
            return
        client_msgs: dict[str, list[Any]] = {}
        worker_msgs: dict[str, list[Any]] = {}
        for key, run_id, nbytes, kind, metadata, thread, startstops in rows:
            if s.validate:
                s.validate_key(key)
            type_, typename = types[kind]
            recommendations, to_clients, to_workers = s.stimulus_task_finished(
                worker=worker,
                stimulus_id=stimulus_id,
                key=key,
                run_id=run_id,
                metadata=metadata,
                nbytes=nbytes,
                type=type_,
                typename=typename,
                thread=thread,
                startstops=startstops,
                status="OK",
            )
            for client, messages in to_clients.items():
                client_msgs.setdefault(client, []).extend(messages)
            for address, messages in to_workers.items():
                worker_msgs.setdefault(address, []).extend(messages)
            if recommendations or s.validate:
                s._transitions(recommendations, client_msgs, worker_msgs, stimulus_id)
        s.send_all(client_msgs, worker_msgs)
        s.stimulus_queue_slots_maybe_opened(stimulus_id=stimulus_id)
