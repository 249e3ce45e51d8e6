"""Tells which ready tasks of a worker may run in a row without a look at each."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from distributed import Worker
from distributed.core import Status
from distributed.worker_state_machine import TaskState

from dask_marsched.host.scheduler.task_hints import is_shared, known_nbytes
from dask_marsched.host.worker.input_release import runs_in_thread
from dask_marsched.policies.tiny_tasks import SMALL, TinyKinds


class TinyTaskRule:
    """Selects tasks of tiny kinds that need nothing unusual; `kinds` learns from all that ran."""

    def __init__(self, worker: Worker, at_ease: Callable[[], bool]) -> None:
        self.kinds = TinyKinds()
        self._worker: Any = worker
        self._at_ease = at_ease

    def is_plain(self, ts: TaskState) -> bool:
        """Whether a task is tiny, and has no resources, span or executor, nor inputs to load."""
        annotations = ts.annotations
        return (
            self.kinds.is_tiny(ts.prefix)
            and ts.state in ("ready", "executing")
            and not ts.resource_restrictions
            and not (annotations and ("executor" in annotations or "span" in annotations))
            and ts.key not in self._worker.state.actors
            and runs_in_thread(self._worker, ts)
            and (known_nbytes(ts) or 0) <= SMALL
            and not is_shared(ts)
            and not _may_contain_expression(ts.run_spec)
            and self._inputs_are_at_hand(ts)
            and self._worker.status == Status.running
            and self._at_ease()
        )

    def _inputs_are_at_hand(self, ts: TaskState) -> bool:
        if not ts.dependencies:
            return True
        if sum(dep.nbytes or 0 for dep in ts.dependencies) > SMALL:
            return False
        in_memory, actors = self._worker.data.fast, self._worker.state.actors
        return all(dep.key not in actors and dep.key in in_memory for dep in ts.dependencies)


def _may_contain_expression(task: Any) -> bool:
    # Importing what reads tasks imports dask.array, half a second that tasks of arrays have spent.
    if "dask.array" not in sys.modules:
        return False
    from dask_marsched.host.kernels.task_runner import may_contain_expression

    return may_contain_expression(task)
