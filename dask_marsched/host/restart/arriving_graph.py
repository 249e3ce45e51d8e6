"""The graph that the scheduler is reading, and of which tasks it brings the definition."""

from __future__ import annotations

import contextvars
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dask.typing import Key


@dataclass
class ArrivingGraph:
    """Its number in the journal, and the keys of tasks that had no definition before it came."""

    number: int
    defined: set[Key] = field(default_factory=set)

    def is_about_to_define(self, nodes: Mapping[Key, Any], tasks: Mapping[Key, Any]) -> None:
        """Note which of its nodes are no tasks yet, or tasks whose definition is unknown."""
        self.defined = {
            key for key in nodes if (ts := tasks.get(key)) is None or ts.run_spec is None
        }


#: The graph that is read in this context.
arriving: contextvars.ContextVar[ArrivingGraph | None] = contextvars.ContextVar(
    "arriving", default=None
)
