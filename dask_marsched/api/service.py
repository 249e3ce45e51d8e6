"""Installs the API on a scheduler's http server, and removes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dask_marsched.api.answers import Source
from dask_marsched.api.endpoints import ENDPOINTS
from dask_marsched.api.openapi import routes
from dask_marsched.api.table import ROOT
from dask_marsched.host.web.http import HttpRoutes


class ApiService:
    """The JSON API of one scheduler and its plugin; `caught` counts exceptions of hooks."""

    def __init__(
        self, scheduler: Any, plugin: Any, caught: Callable[[str, Exception], None]
    ) -> None:
        self._source = Source(scheduler, plugin, caught)
        self._routes = HttpRoutes(scheduler, routes(ENDPOINTS, self._source))
        self._source.prefix = self._routes.prefix
        self.reason: str | None = "not installed"

    def install(self) -> None:
        """Add the routes; if that fails, `reason` says why."""
        self.reason = self._routes.install()

    def uninstall(self) -> None:
        """Remove the routes. Idempotent."""
        self._routes.uninstall()
        self._source.members.drop()
        self.reason = "removed from the scheduler"

    def report(self) -> dict[str, Any]:
        """Return the ``path`` on the scheduler's http server, or the ``reason`` for none."""
        path = None if self.reason else f"{self._source.prefix}{ROOT}/"
        return {"path": path, "reason": self.reason}
