"""Hooks that run before the scheduler's handler of new graphs and set a context for its thread."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import MutableMapping
from contextvars import ContextVar
from typing import Any

from distributed.scheduler import Scheduler


class ArrivingGraphs(ABC):
    """Wraps one scheduler's handler of graphs.

    ``wanted`` holds the result of `of_message` while the scheduler and its offload thread read a
    graph; ``in_force`` the installed hooks of this kind, by scheduler.
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
        """Wrap the present handler, which may be another plugin's."""
        handlers = self.scheduler.stream_handlers
        self._stock = handlers["update-graph"]
        handlers["update-graph"] = self._update_graph
        self._in_force[self.scheduler] = self

    def uninstall(self) -> None:
        """Restore the handler."""
        handlers = self.scheduler.stream_handlers
        if handlers["update-graph"] == self._update_graph:  # else another plugin has wrapped ours
            handlers["update-graph"] = self._stock
        self._in_force.pop(self.scheduler, None)

    @abstractmethod
    def of_message(self, message: dict[str, Any]) -> Any:
        """Return the request, if any, for ``update_graph``'s arguments, which it may change."""

    async def _update_graph(self, **message: Any) -> None:
        if self._in_force.get(self.scheduler) is self:
            self._wanted.set(self.of_message(message))
        try:
            await self._stock(**message)
        finally:
            self._wanted.set(None)
