"""Bokeh pages of ours on a scheduler's dashboard, put there and taken away while it runs.

The scheduler's http server asks one Bokeh application after the other. Ours comes first, because
the list of panes that JupyterLab shows is that of the first one; so it names the scheduler's own
pages, too, though it leaves them to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

#: Makes the document of a page: (scheduler, variables of the template, document).
Page = Callable[[Any, dict[str, Any], Any], None]


def misfits() -> list[str]:
    """Return what in distributed's dashboard is not as expected; empty if all is well."""
    import inspect

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
    """Pages on the dashboard of one scheduler.

    Parameters
    ----------
    scheduler
        A `distributed.Scheduler`.
    pages
        By path, with a slash before it.
    entries
        Paths, without the slash, that get an entry in the bar of each page.
    plots
        Name and path, without the slash, of the entries in the list ``More...``.
    """

    def __init__(
        self,
        scheduler: Any,
        pages: Mapping[str, Page],
        entries: list[str],
        plots: list[tuple[str, str]],
    ) -> None:
        self._scheduler = scheduler
        self._pages = dict(pages)
        self._entries = entries
        self._plots = [{"url": url, "name": name} for name, url in plots]
        self._application: Any = None

    def install(self) -> str | None:
        """Put the pages there; return why not, None if all is well."""
        http: Any = getattr(self._scheduler, "http_application", None)
        if not getattr(http, "applications", None):
            return "the scheduler has no dashboard"
        try:
            from bokeh.server.tornado import BokehTornado
        except ImportError as missing:
            return f"bokeh cannot be imported: {missing}"
        stock = next((app for app in http.applications if isinstance(app, BokehTornado)), None)
        if stock is None:
            return "the scheduler has no dashboard"
        found = misfits()
        if found:
            return f"the dashboard is not as expected: {'; '.join(found)}"
        self._application = self._make(stock)
        http.applications.insert(0, self._application)
        self._list()
        return None

    def _make(self, stock: Any) -> Any:
        from distributed.dashboard.core import BokehApplication
        from distributed.dashboard.scheduler import template_variables
        from tornado.ioloop import IOLoop

        # The same dict as that of the scheduler's pages: entries come and go in all of them.
        variables = template_variables(self._scheduler)
        application = BokehApplication(
            self._pages, self._scheduler, prefix=stock.prefix, template_variables=variables
        )
        own = type(application)

        class Pages(own):  # type: ignore[misc,valid-type]  # its own class
            """The pages, that claim to be those of the scheduler, too."""

            @property
            def app_paths(self) -> set[str]:
                return set(own.app_paths.fget(self)) | set(stock.app_paths)

        application.__class__ = Pages
        application.initialize(IOLoop.current())
        application.start()
        return application

    def _list(self) -> None:
        from distributed.dashboard.scheduler import template_variables

        variables = template_variables(self._scheduler)
        variables["pages"] += [page for page in self._entries if page not in variables["pages"]]
        variables["plots"] += self._plots

    def _unlist(self) -> None:
        from distributed.dashboard.scheduler import template_variables

        variables = template_variables(self._scheduler)
        variables["pages"][:] = [p for p in variables["pages"] if p not in self._entries]
        variables["plots"][:] = [p for p in variables["plots"] if p not in self._plots]

    def uninstall(self) -> None:
        """Take the pages away; those that are open stay as they are. Idempotent."""
        application, self._application = self._application, None
        if application is None:
            return
        http = self._scheduler.http_application
        if application in http.applications:
            http.applications.remove(application)
        self._unlist()
        for path in self._pages:
            for session in application.get_sessions(path):
                _end(session.document)
        application.stop(wait=False)


def _end(document: Any) -> None:
    """Have an open page say that it is not brought up to date any more, and ask for nothing."""

    def last() -> None:
        for pane in getattr(document, "components", ()):
            pane.end()
        for callback in list(document.session_callbacks):
            if hasattr(callback, "period"):
                document.remove_periodic_callback(callback)

    # With the document's lock, which is not ours here.
    document.add_next_tick_callback(last)
