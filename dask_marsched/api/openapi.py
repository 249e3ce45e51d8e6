"""Defines an endpoint of the API, and makes the OpenAPI description from a table of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dask_marsched.api.parameters import Parameter

#: Path of the API behind the prefix of the http server.
ROOT = "marsched/api/v1"

_ABOUT = (
    "What the scheduler plugin dask_marsched plans and does. Answers are bounded; lists come in "
    "pages. Times are seconds since 1970 by the scheduler's clock, sizes bytes, durations seconds."
)
_REFERENCE = {"$ref": "#/components/schemas/Error"}
_REFUSED = {
    "400": "A parameter is not accepted; the message says what is.",
    "404": "There is no such thing.",
    "405": "The path does not have this method; the header Allow names those it has.",
    "500": "A defect of dask_marsched; the scheduler's log has it.",
}
_REFUSED_WRITING = {
    "403": "This API only reads here, or the request comes from a page of another site.",
    "409": "It cannot be done as things are; the message says why.",
    "413": "The body is too large.",
    "415": "The body is not application/json.",
}


@dataclass(frozen=True)
class Endpoint:
    """A method of a path."""

    method: str  #: ``POST`` if it may change something, else ``GET``.
    path: str  #: Below `ROOT`, with parameters in braces: ``/graphs/{graph}``.
    about: str
    #: Called with the source and the values; returns plain values or an awaitable.
    answer: Callable[..., Any]
    #: In the path; the others are in the query, or fields of a JSON object in the body of a POST.
    parameters: tuple[Parameter, ...] = ()

    @property
    def writes(self) -> bool:
        """Whether it may change anything."""
        return self.method != "GET"

    @property
    def path_parameters(self) -> list[Parameter]:
        """Parameters in the path."""
        return [p for p in self.parameters if f"{{{p.name}}}" in self.path]

    @property
    def options(self) -> list[Parameter]:
        """Parameters in the query or the body."""
        return [p for p in self.parameters if f"{{{p.name}}}" not in self.path]

    @property
    def name(self) -> str:
        """Name of the operation: the path in one word."""
        words = [word.strip("{}") for word in self.path.split("/") if word]
        return "_".join([self.method.lower(), *words]).replace(".", "_")


def document(endpoints: Sequence[Endpoint], version: str, prefix: str = "/") -> dict[str, Any]:
    """Return the OpenAPI 3.1 description of a table, for a prefix of the http server."""
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        operations = paths.setdefault(endpoint.path, {})
        operations[endpoint.method.lower()] = _operation(endpoint)
    error = _object(
        status={"type": "integer"},
        message={"type": "string"},
        parameter={"type": ["string", "null"]},
    )
    return {
        "openapi": "3.1.0",
        "info": {"title": "dask_marsched", "version": version, "description": _ABOUT},
        "servers": [{"url": prefix + ROOT}],
        "paths": paths,
        "components": {"schemas": {"Error": _object(error=error)}},
    }


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    refused = {**_REFUSED, **(_REFUSED_WRITING if endpoint.writes else {})}
    operation: dict[str, Any] = {
        "operationId": endpoint.name,
        "summary": endpoint.about,
        "parameters": _parameters(endpoint),
        "responses": {
            "200": {"description": "The answer.", "content": _json({"type": "object"})},
            **{
                status: {"description": why, "content": _json(_REFERENCE)}
                for status, why in refused.items()
            },
        },
    }
    if endpoint.writes:
        body = {
            "type": "object",
            "properties": {p.name: p.schema() | {"description": p.about} for p in endpoint.options},
            "additionalProperties": False,
        }
        operation["requestBody"] = {"required": True, "content": _json(body)}
    return operation


def _parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    placed = [("path", p) for p in endpoint.path_parameters]
    placed += [("query", p) for p in endpoint.options if not endpoint.writes]
    return [
        {
            "name": parameter.name,
            "in": place,
            "required": place == "path",
            "description": parameter.about,
            "schema": parameter.schema(),
            **({} if parameter.example is None else {"example": parameter.example}),
        }
        for place, parameter in placed
    ]


def _object(**properties: Any) -> dict[str, Any]:
    """Return the schema of an object that has all these properties."""
    return {"type": "object", "properties": properties, "required": list(properties)}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
