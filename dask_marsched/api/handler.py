"""The tornado handler: a request in, JSON out, whatever happens."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from inspect import isawaitable
from typing import Any

from tornado import web

from dask_marsched.api.parameters import RefusedError, read_fields, read_query
from dask_marsched.api.plain import to_json
from dask_marsched.api.table import Endpoint
from dask_marsched.api.writing import MOST_BYTES, check_writing

logger = logging.getLogger("dask_marsched")


class Site:
    """What the handlers share.

    Parameters
    ----------
    source
        What the endpoints' functions get.
    writable
        Returns whether requests may change anything.
    caught
        Told of exceptions.
    """

    def __init__(
        self,
        source: Any,
        writable: Callable[[], bool],
        caught: Callable[[str, Exception], None],
    ) -> None:
        self.source = source
        self.writable = writable
        self.caught = caught


class ApiHandler(web.RequestHandler):
    """Serves the endpoints of one path.

    Parameters
    ----------
    site
        What all handlers share.
    endpoints
        The endpoints of the path by method; none at all: the path is unknown.
    """

    def initialize(self, site: Site, endpoints: Mapping[str, Endpoint]) -> None:
        """Take what the route gives."""
        self.site = site
        self.endpoints = endpoints

    def set_default_headers(self) -> None:
        """Say what every answer is."""
        self.set_header("Content-Type", "application/json")
        self.set_header("Cache-Control", "no-store")
        self.set_header("X-Content-Type-Options", "nosniff")

    def compute_etag(self) -> None:
        """Return none: what is asked for changes all the time."""

    def prepare(self) -> None:
        """Refuse what no endpoint answers."""
        if not self.endpoints:
            raise RefusedError(404, "there is no such path; see openapi.json")
        if self.request.method not in self._methods():
            raise RefusedError(405, f"{self.request.method} is not a method of this path")

    def _methods(self) -> list[str]:
        return [*self.endpoints, *(["HEAD"] if "GET" in self.endpoints else [])]

    async def get(self, **path: str) -> None:
        """Answer."""
        endpoint = self.endpoints["GET"]
        values = self._path(endpoint, path)
        values |= read_query(endpoint.query, self.request.query_arguments)
        await self._answer(endpoint.answer(self.site.source, **values))

    head = get

    async def post(self, **path: str) -> None:
        """Change something."""
        endpoint = self.endpoints["POST"]
        check_writing(self.site.writable(), self.request.headers, self.request.host)
        values = self._path(endpoint, path)
        values |= read_query(endpoint.query, self.request.query_arguments)
        values |= read_fields(endpoint.fields, self._body())
        await self._answer(endpoint.answer(self.site.source, **values))

    @staticmethod
    def _path(endpoint: Endpoint, path: Mapping[str, str]) -> dict[str, Any]:
        return {p.name: p.read(path[p.name]) for p in endpoint.path_parameters}

    def _body(self) -> Any:
        if len(self.request.body) > MOST_BYTES:
            raise RefusedError(413, f"the body must be of {MOST_BYTES} bytes at most")
        try:
            return json.loads(self.request.body)
        except (ValueError, RecursionError):
            raise RefusedError(400, "the body must be JSON") from None

    async def _answer(self, answer: Any | Awaitable[Any]) -> None:
        self.finish(to_json(await answer if isawaitable(answer) else answer))

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Say what is wrong, as JSON."""
        error = kwargs["exc_info"][1] if "exc_info" in kwargs else None
        if isinstance(error, RefusedError):
            status_code, message = error.status, error.message
            self.set_status(status_code)
        elif status_code < 500:
            message = HTTPStatus(status_code).phrase
        else:
            message = "an error of dask_marsched's; the scheduler's log has it"
        if status_code == 405:
            self.set_header("Allow", ", ".join(self._methods()))
        parameter = getattr(error, "parameter", None)
        told = {"status": status_code, "message": message, "parameter": parameter}
        self.finish(to_json({"error": told}))

    def log_exception(self, kind: Any, error: Any, traceback: Any) -> None:
        """Count and log what is no answer to a request of somebody else's making."""
        if isinstance(error, Exception) and not isinstance(error, RefusedError | web.HTTPError):
            self.site.caught("api", error)
