"""Installs the pages on a scheduler's dashboard, and removes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dask_marsched.host.web.dashboard import DashboardPages


class DashboardService:
    """The pages of one scheduler; `caught` counts exceptions of hooks."""

    def __init__(self, scheduler: Any, caught: Callable[[str, Exception], None]) -> None:
        self._scheduler = scheduler
        self._caught = caught
        self._pages: DashboardPages | None = None
        self._paths: list[str] = []
        self.reason: str | None = "not installed"

    def install(self) -> None:
        """Add the pages; if that fails, `reason` says why. Never raises."""
        if not getattr(getattr(self._scheduler, "http_application", None), "applications", None):
            self.reason = "the scheduler has no dashboard"
            return
        try:
            # Only here: Bokeh takes half a second to import, and may be missing.
            from dask_marsched.dashboard.pages import OVERVIEW, PANES, all_pages

            plots = {f"mars-{pane.name}": f"Mars: {pane.name}" for pane in PANES}
            pages = all_pages()
            self._paths = [path.strip("/") for path in pages]
            self._pages = DashboardPages(self._scheduler, pages, OVERVIEW, plots)
            self.reason = self._pages.install()
        except ImportError as missing:
            self.reason = f"bokeh cannot be imported: {missing}"
        except Exception as error:
            self.uninstall()
            self.reason = f"{type(error).__name__}: {error}"
            self._caught("dashboard", error)

    def uninstall(self) -> None:
        """Remove the pages. Idempotent."""
        pages, self._pages = self._pages, None
        self.reason = "removed from the scheduler"
        if pages is None:
            return
        try:
            pages.uninstall()
        except Exception as error:
            self._caught("dashboard", error)

    def report(self) -> dict[str, Any]:
        """Return the ``pages`` on the dashboard, or the ``reason`` why there are none."""
        return {"pages": [] if self.reason else self._paths, "reason": self.reason}
