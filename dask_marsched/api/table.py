"""Defines an endpoint of the API."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dask_marsched.api.parameters import Parameter

#: Path of the API behind the prefix of the http server.
ROOT = "marsched/api/v1"


@dataclass(frozen=True)
class Endpoint:
    """A method of a path.

    Attributes
    ----------
    method
        ``GET``, or ``POST`` if it may change something.
    path
        Below `ROOT`, with the names of its parameters in braces: ``/graphs/{graph}``.
    about
        Its summary, for people.
    answer
        A function of the source and the parameters' values that returns plain values, or an
        awaitable of them.
    schema
        JSON Schema of the answer.
    path_parameters, query, fields
        Parameters in the path, in the query, and of the JSON object in the body.
    """

    method: str
    path: str
    about: str
    answer: Callable[..., Any]
    schema: dict[str, Any]
    path_parameters: tuple[Parameter, ...] = ()
    query: tuple[Parameter, ...] = ()
    fields: tuple[Parameter, ...] = ()

    @property
    def writes(self) -> bool:
        """Whether it may change anything."""
        return self.method != "GET"

    @property
    def name(self) -> str:
        """Name of the operation: the path in one word."""
        words = [word.strip("{}") for word in self.path.split("/") if word]
        return "_".join([self.method.lower(), *words]).replace(".", "_")
