"""The operands of a graph, kept between the pages of a list of them."""

from __future__ import annotations

import asyncio
from typing import Any

from dask_marsched.host.scheduler.operand_states import operands_of
from dask_marsched.monitoring.executions import Graph

#: Seconds for which the operands of a graph are kept after they were asked for.
_KEPT = 10.0


class Members:
    """Finds the operands of a graph; those of one graph are kept for a while.

    To find them all takes time in proportion to the graph, in which the event loop has its turns.
    Requests that come at the same time wait for each other, so that it is done once for them.

    Parameters
    ----------
    scheduler
        A `distributed.Scheduler`.
    """

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
        """Keep nothing."""
        if self._timer is not None:
            self._timer.cancel()
        self._of, self._found, self._timer = None, [], None
