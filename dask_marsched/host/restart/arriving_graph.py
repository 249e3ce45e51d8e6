"""Tracks the graph that the scheduler is reading, and which tasks it brings the definition of."""

from __future__ import annotations

import contextvars
from collections.abc import Collection, Container, Mapping
from dataclasses import dataclass, field
from typing import Any

from dask.typing import Key

from dask_marsched.host.graph import fusion
from dask_marsched.host.restart.process import NO_RUN, next_run


@dataclass
class ArrivingGraph:
    """Its number in the journal, and the keys of tasks that it is the first one to define there.

    Runs of these tasks have at least the number ``first_run``.
    """

    number: int
    defined: set[Key] = field(default_factory=set)
    first_run: int = NO_RUN

    def is_about_to_define(
        self, nodes: Mapping[Key, Any], tasks: Mapping[Key, Any], unrecorded: Container[Key]
    ) -> None:
        """Note which of its nodes are no tasks yet, or are defined nowhere in the journal."""
        self.defined = {
            key
            for key in nodes
            if (ts := tasks.get(key)) is None or ts.run_spec is None or key in unrecorded
        }
        # A task that is there already may have run. (`isdisjoint` would look at all tasks.)
        if not any(key in tasks for key in self.defined):
            self.first_run = next_run()

    def record(self, scheduler: Any, tasks: Collection[Key]) -> dict[str, Any]:
        """Return how the scheduler has made its tasks, for the journal."""
        request = fusion.current.get()
        priorities = (scheduler.tasks[key].priority for key in tasks if key in self.defined)
        generations = (float(priority[1]) for priority in priorities if priority)
        return {
            "generation": next(generations, float(scheduler.generation)),
            "bundles": request.chosen if request is not None else [],
            "groups": request.groups if request is not None else {},
            "first_run": self.first_run,
            "known": [key for key in tasks if key not in self.defined],
        }


#: The graph that is read in this context.
arriving: contextvars.ContextVar[ArrivingGraph | None] = contextvars.ContextVar(
    "arriving", default=None
)
