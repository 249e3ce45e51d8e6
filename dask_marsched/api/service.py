"""Installs the API on a scheduler's http server, and removes it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from dask_marsched.api.answers import Source
from dask_marsched.api.endpoints import ENDPOINTS
from dask_marsched.api.handler import ApiHandler
from dask_marsched.api.openapi import ROOT, Endpoint
from dask_marsched.host.web.http import HttpRoutes


class ApiService(Source):
    """The JSON API of one scheduler and its plugin; `caught` counts exceptions of hooks."""

    def __init__(
        self, scheduler: Any, plugin: Any, caught: Callable[[str, Exception], None]
    ) -> None:
        super().__init__(scheduler, plugin, caught)
        paths: dict[str, dict[str, Endpoint]] = {}
        for endpoint in ENDPOINTS:
            paths.setdefault(_pattern(endpoint.path), {})[endpoint.method] = endpoint
        paths["(?:/.*)?"] = {}  # unknown paths below the root get our errors, not distributed's
        self._routes = HttpRoutes(
            scheduler,
            [
                (ROOT + pattern, ApiHandler, {"source": self, "endpoints": by_method})
                for pattern, by_method in paths.items()
            ],
        )
        self.prefix = self._routes.prefix
        self.reason: str | None = "not installed"

    def install(self) -> None:
        """Add the routes; if that fails, `reason` says why."""
        self.reason = self._routes.install()

    def uninstall(self) -> None:
        """Remove the routes. Idempotent."""
        self._routes.uninstall()
        self.members.drop()
        self.reason = "removed from the scheduler"

    def report(self) -> dict[str, Any]:
        """Return the ``path`` on the scheduler's http server, or the ``reason`` for none."""
        path = None if self.reason else f"{self.prefix}{ROOT}/"
        return {"path": path, "reason": self.reason}


def _pattern(path: str) -> str:
    if path == "/":
        return "/?"
    parts = re.split(r"\{(\w+)\}", path)
    return "".join(f"(?P<{p}>[^/]+)" if i % 2 else re.escape(p) for i, p in enumerate(parts))
