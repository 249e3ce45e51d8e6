"""Adds routes to the http server of a running scheduler, and removes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tornado import web

#: Routes of `distributed.http`; at least one of them exists on every server, behind its prefix.
_STOCK_ROUTES = ("health", "json/counts.json", "metrics", "info/main/workers.html", "api/v1")


class HttpRoutes:
    """Routes on a scheduler's http server: pattern without its prefix, handler, arguments."""

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
        """Beginning of every path: ``/``, or the ``--dashboard-prefix``."""
        application = self._application
        if application is None:
            return "/"
        # The scheduler does not store its prefix, but its own routes begin with it.
        for pattern in _patterns(application.wildcard_router.rules):
            for route in _STOCK_ROUTES:
                if pattern.endswith("/" + route + "$"):
                    return pattern.removesuffix(route + "$")
        for dashboard in getattr(application, "applications", ()):
            prefix = getattr(dashboard, "prefix", None)
            if prefix is not None:
                return "/" + f"{prefix.strip('/')}/".lstrip("/")
        return "/"

    def install(self) -> str | None:
        """Add the routes; return the reason if that is impossible, else None."""
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
        """Remove the routes. Idempotent."""
        if self._application is not None and self._rule is not None:
            self._application.default_router.rules.remove(self._rule)
        self._rule = None


def serves(scheduler: Any, module: str) -> bool:
    """Return whether a scheduler's http server has handlers of a module."""
    application = getattr(scheduler, "http_application", None)
    return application is not None and any(
        getattr(rule.target, "__module__", None) == module
        for rule in application.wildcard_router.rules
    )


def _patterns(rules: Sequence[Any]) -> Iterator[str]:
    """Yield the patterns of rules and of their nested routers."""
    for rule in rules:
        regex = getattr(rule.matcher, "regex", None)
        if regex is not None:
            yield regex.pattern
        yield from _patterns(getattr(rule.target, "rules", ()))
