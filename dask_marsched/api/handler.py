"""Answers every request with JSON, errors included: the tornado handler."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Mapping
from http import HTTPStatus
from inspect import isawaitable
from typing import Any

from tornado import web

from dask_marsched.api.answers import Source
from dask_marsched.api.openapi import Endpoint
from dask_marsched.api.parameters import RefusedError, read_fields, read_query
from dask_marsched.api.writing import MOST_BYTES, check_writing
from dask_marsched.core.plain_values import plain


class ApiHandler(web.RequestHandler):
    """Serves the endpoints of one path, by method; there are none for an unknown path."""

    def initialize(self, source: Source, endpoints: Mapping[str, Endpoint]) -> None:
        """Keep the arguments of the route."""
        self.source = source
        self.endpoints = endpoints

    def set_default_headers(self) -> None:
        """Set the headers of every answer."""
        self.set_header("Content-Type", "application/json")
        self.set_header("Cache-Control", "no-store")
        self.set_header("X-Content-Type-Options", "nosniff")

    def compute_etag(self) -> None:
        """Return nothing: answers change all the time."""

    def prepare(self) -> None:
        """Refuse unknown paths and methods."""
        if not self.endpoints:
            raise RefusedError(404, "there is no such path; see openapi.json")
        if self.request.method not in self._methods():
            raise RefusedError(405, f"{self.request.method} is not a method of this path")

    def _methods(self) -> list[str]:
        return [*self.endpoints, *(["HEAD"] if "GET" in self.endpoints else [])]

    async def get(self, **path: str) -> None:
        """Answer a GET request."""
        endpoint = self.endpoints["GET"]
        values = self._values(endpoint, path)
        await self._answer(endpoint.answer(self.source, **values))

    head = get

    async def post(self, **path: str) -> None:
        """Answer a POST request, which may change something."""
        endpoint = self.endpoints["POST"]
        check_writing(self.source.writable(), self.request.headers, self.request.host)
        values = self._values(endpoint, path)
        values |= read_fields(endpoint.options, self._body())
        await self._answer(endpoint.answer(self.source, **values))

    def _values(self, endpoint: Endpoint, path: Mapping[str, str]) -> dict[str, Any]:
        values = {p.name: p.read(path[p.name]) for p in endpoint.path_parameters}
        accepted = [] if endpoint.writes else endpoint.options
        return values | read_query(accepted, self.request.query_arguments)

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
        """Answer with the error as JSON."""
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
        error_fields = {"status": status_code, "message": message, "parameter": parameter}
        self.finish(to_json({"error": error_fields}))

    def log_exception(self, kind: Any, error: Any, traceback: Any) -> None:
        """Count and log an error of our own; refused requests are not logged."""
        if isinstance(error, Exception) and not isinstance(error, RefusedError | web.HTTPError):
            self.source.caught("api", error)


def to_json(value: Any) -> str:
    """Return a value as JSON that every parser reads.

    NaN and infinities become null; keys and values of other types become text.
    """
    try:
        return json.dumps(value, allow_nan=False, check_circular=False, separators=(",", ":"))
    except (TypeError, ValueError):
        return json.dumps(plain(value), allow_nan=False, separators=(",", ":"))
