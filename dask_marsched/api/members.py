"""Finds the operands of a graph, and caches them between the pages of a list."""

from __future__ import annotations

import asyncio
from typing import Any

from dask_marsched.host.scheduler.operand_states import operands_of
from dask_marsched.monitoring.executions import Graph

#: Seconds for which the operands of a graph are cached.
_KEPT = 10.0


class Members:
    """Finds the operands of a graph; concurrent requests share one search, which is cached."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._lock = asyncio.Lock()
        self._of: Graph | None = None
        self._found: list[Any] = []
        self._timer: asyncio.TimerHandle | None = None

    async def of(self, graph: Graph) -> list[Any]:
        """Return the tasks of a graph."""
        async with self._lock:
            if graph is not self._of:
                self.drop()
                keys: Any = graph.wanted
                self._found = await operands_of(self._scheduler, keys)
                self._of = graph
                loop = asyncio.get_running_loop()
                self._timer = loop.call_later(_KEPT, self.drop)
            return self._found

    def drop(self) -> None:
        """Empty the cache."""
        if self._timer is not None:
            self._timer.cancel()
        self._of, self._found, self._timer = None, [], None
