"""Adds Bokeh pages to the dashboard of a running scheduler, and removes them.

The scheduler's http server asks its Bokeh applications one after the other. Ours comes first, since
JupyterLab lists the panes of the first one. It therefore also claims the stock pages in its list of
paths, and leaves them to the next application.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

#: Makes the document of a page: (scheduler, variables of the template, document).
Page = Callable[[Any, dict[str, Any], Any], None]


def misfits() -> list[str]:
    """Return what is not as expected in distributed's dashboard; empty if all is well."""
    from distributed.dashboard import scheduler as stock
    from distributed.dashboard.core import BokehApplication

    found = []
    expected = ["applications", "server", "prefix", "template_variables"]
    if list(inspect.signature(BokehApplication).parameters) != expected:
        found.append(f"BokehApplication does not take {', '.join(expected)}")
    if not callable(getattr(stock, "template_variables", None)):
        found.append("distributed.dashboard.scheduler has no template_variables")
    return found


class DashboardPages:
    """Pages on the dashboard of one scheduler, by path with a leading slash.

    ``entry`` is a path, without the slash, for the bar of each page; ``plots`` are those for the
    list ``More...``, with their names.
    """

    def __init__(
        self, scheduler: Any, pages: Mapping[str, Page], entry: str, plots: Mapping[str, str]
    ) -> None:
        self._scheduler = scheduler
        self._pages = dict(pages)
        self._entry = entry
        self._plots = [{"url": url, "name": name} for url, name in plots.items()]
        self._application: Any = None
        self._variables: dict[str, Any] = {}

    def install(self) -> str | None:
        """Add the pages to the http server; return the reason if that is impossible, else None."""
        from bokeh.server.tornado import BokehTornado

        http = self._scheduler.http_application
        stock = next((app for app in http.applications if isinstance(app, BokehTornado)), None)
        if stock is None:
            return "the scheduler has no dashboard"
        found = misfits()
        if found:
            return f"the dashboard is not as expected: {'; '.join(found)}"
        self._application = self._make(stock)
        http.applications.insert(0, self._application)
        if self._entry not in self._variables["pages"]:
            self._variables["pages"].append(self._entry)
        self._variables["plots"] += self._plots
        return None

    def _make(self, stock: Any) -> Any:
        from distributed.dashboard.core import BokehApplication
        from distributed.dashboard.scheduler import template_variables
        from tornado.ioloop import IOLoop

        # The stock pages share this dict, so that our entries appear in their bars too.
        self._variables = template_variables(self._scheduler)
        application = BokehApplication(
            self._pages, self._scheduler, prefix=stock.prefix, template_variables=self._variables
        )
        own = type(application)

        class Pages(own):  # type: ignore[misc,valid-type]  # its own class
            """An application that also lists the paths of the stock one."""

            @property
            def app_paths(self) -> set[str]:
                return set(own.app_paths.fget(self)) | set(stock.app_paths)

        application.__class__ = Pages
        application.initialize(IOLoop.current())
        application.start()
        return application

    def uninstall(self) -> None:
        """Remove the pages; open ones stay as they are. Idempotent."""
        application, self._application = self._application, None
        if application is None:
            return
        http = self._scheduler.http_application
        if application in http.applications:
            http.applications.remove(application)
        pages, plots = self._variables["pages"], self._variables["plots"]
        pages[:] = [page for page in pages if page != self._entry]
        plots[:] = [plot for plot in plots if plot not in self._plots]
        for path in self._pages:
            for session in application.get_sessions(path):
                _end(session.document)
        application.stop(wait=False)


def _end(document: Any) -> None:
    """Have an open page say that it is no longer updated, and stop its updates."""

    def last() -> None:
        for pane in getattr(document, "components", ()):
            pane.end()
        for callback in list(document.session_callbacks):
            if hasattr(callback, "period"):
                document.remove_periodic_callback(callback)

    # The callback runs with the document's lock, which is not held here.
    document.add_next_tick_callback(last)
