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
    """A method of a path."""

    method: str  #: ``POST`` if it may change something, else ``GET``.
    path: str  #: Below `ROOT`, with parameters in braces: ``/graphs/{graph}``.
    about: str
    #: Called with the source and the values; returns plain values or an awaitable.
    answer: Callable[..., Any]
    path_parameters: tuple[Parameter, ...] = ()
    query: tuple[Parameter, ...] = ()
    fields: tuple[Parameter, ...] = ()  #: Of the JSON object in the body.

    @property
    def writes(self) -> bool:
        """Whether it may change anything."""
        return self.method != "GET"

    @property
    def name(self) -> str:
        """Name of the operation: the path in one word."""
        words = [word.strip("{}") for word in self.path.split("/") if word]
        return "_".join([self.method.lower(), *words]).replace(".", "_")
