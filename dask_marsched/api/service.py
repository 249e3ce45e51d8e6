"""The API on a scheduler: put on its http server, and taken off it again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dask_marsched.api.answers import Source
from dask_marsched.api.endpoints import ENDPOINTS
from dask_marsched.api.handler import Site
from dask_marsched.api.openapi import routes
from dask_marsched.api.table import ROOT
from dask_marsched.host.web.http import HttpRoutes


class ApiService:
    """The JSON API of one scheduler.

    Parameters
    ----------
    scheduler
        A `distributed.Scheduler`.
    plugin
        The plugin that it tells about.
    caught
        Told of exceptions, with the name of what they were caught in.
    """

    def __init__(
        self, scheduler: Any, plugin: Any, caught: Callable[[str, Exception], None]
    ) -> None:
        self._source = Source(scheduler, plugin, caught)
        site = Site(self._source, self._source.writable, caught)
        self._routes = HttpRoutes(scheduler, routes(ENDPOINTS, site))
        self._source.prefix = self._routes.prefix
        self.reason: str | None = "not installed"

    def install(self) -> None:
        """Serve it; where that cannot be, `reason` says why."""
        self.reason = self._routes.install()

    def uninstall(self) -> None:
        """Serve it no more. Idempotent."""
        self._routes.uninstall()
        self._source.members.drop()
        self.reason = "removed from the scheduler"

    def report(self) -> dict[str, Any]:
        """Return the ``path`` on the scheduler's http server, or the ``reason`` why not."""
        path = None if self.reason else f"{self._source.prefix}{ROOT}/"
        return {"path": path, "reason": self.reason}
