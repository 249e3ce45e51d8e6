"""A place before a scheduler's handler of graphs, for what happens to them while they are read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import MutableMapping
from contextvars import ContextVar
from typing import Any

from distributed.scheduler import Scheduler


class ArrivingGraphs(ABC):
    """Notes of each graph that arrives at one scheduler what is wanted of it.

    Parameters
    ----------
    scheduler
        The scheduler.
    wanted
        Where to note it: in the coroutine of the scheduler that reads the graph and in the thread
        that it hands the work to.
    in_force
        By scheduler, what is in force there of this kind.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        wanted: ContextVar[Any],
        in_force: MutableMapping[Scheduler, Any],
    ) -> None:
        self.scheduler: Any = scheduler
        self._wanted = wanted
        self._in_force = in_force
        self._stock: Any = None

    def install(self) -> None:
        """Come before the scheduler's handler of graphs, whoever's that is."""
        handlers = self.scheduler.stream_handlers
        self._stock = handlers["update-graph"]
        handlers["update-graph"] = self._update_graph
        self._in_force[self.scheduler] = self

    def uninstall(self) -> None:
        """Leave that place. What has been done to graphs stays."""
        handlers = self.scheduler.stream_handlers
        if handlers["update-graph"] == self._update_graph:  # else somebody came before us
            handlers["update-graph"] = self._stock
        self._in_force.pop(self.scheduler, None)

    @abstractmethod
    def of_message(self, message: dict[str, Any]) -> Any:
        """Return what is wanted of the graph in a message, None for nothing.

        Parameters
        ----------
        message
            The arguments of `distributed.Scheduler.update_graph`; may be changed.
        """

    async def _update_graph(self, **message: Any) -> None:
        if self._in_force.get(self.scheduler) is self:
            self._wanted.set(self.of_message(message))
        try:
            await self._stock(**message)
        finally:
            self._wanted.set(None)
