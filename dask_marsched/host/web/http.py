"""Routes of ours on a scheduler's http server, put there and taken away while it runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tornado import web

#: What `distributed.http` puts behind the prefix, one of which is there wherever routes are.
_KNOWN = ("health", "json/counts.json", "metrics", "info/main/workers.html", "api/v1")


class HttpRoutes:
    """Routes on the http server of a scheduler, with or without a dashboard.

    Parameters
    ----------
    scheduler
        A `distributed.Scheduler`.
    routes
        Pattern (behind the server's prefix, without a slash before it), handler and its
        arguments of each.
    """

    def __init__(
        self,
        scheduler: Any,
        routes: Sequence[tuple[str, type[web.RequestHandler], dict[str, Any]]],
    ) -> None:
        self._application: web.Application | None = getattr(scheduler, "http_application", None)
        self._routes = routes
        self._rule: Any = None

    @property
    def prefix(self) -> str:
        """What stands before every path: ``/``, or that of ``--dashboard-prefix``."""
        return _prefix(self._application) if self._application is not None else "/"

    def install(self) -> str | None:
        """Put the routes on the server; return why not, None if all is well."""
        application = self._application
        if application is None:
            return "the scheduler has no http server"
        rules = application.default_router.rules
        prefix = self.prefix
        routes = [(prefix + path, handler, given) for path, handler, given in self._routes]
        if not {path + "$" for path, _, _ in routes}.isdisjoint(_patterns(rules)):
            return "another plugin's routes are there"
        before = set(rules)
        application.add_handlers(".*", routes)
        self._rule = next(rule for rule in rules if rule not in before)
        return None

    def uninstall(self) -> None:
        """Take the routes away. Idempotent."""
        if self._application is not None and self._rule is not None:
            self._application.default_router.rules.remove(self._rule)
        self._rule = None


def _prefix(application: web.Application) -> str:
    # The scheduler does not keep it, but its own routes stand behind it.
    for pattern in _patterns(application.wildcard_router.rules):
        for known in _KNOWN:
            if pattern.endswith("/" + known + "$"):
                return pattern.removesuffix(known + "$")
    for dashboard in getattr(application, "applications", ()):
        prefix = getattr(dashboard, "prefix", None)
        if prefix is not None:
            return "/" + f"{prefix.strip('/')}/".lstrip("/")
    return "/"


def serves(scheduler: Any, module: str) -> bool:
    """Whether handlers of a module are on the http server of a scheduler."""
    application = getattr(scheduler, "http_application", None)
    return application is not None and any(
        getattr(rule.target, "__module__", None) == module
        for rule in application.wildcard_router.rules
    )


def _patterns(rules: Sequence[Any]) -> Iterator[str]:
    """Yield the patterns of rules, and of the routers that they lead to."""
    for rule in rules:
        regex = getattr(rule.matcher, "regex", None)
        if regex is not None:
            yield regex.pattern
        yield from _patterns(getattr(rule.target, "rules", ()))
