"""Reads parameters from requests, and checks them against their JSON Schemas."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_WHOLE = re.compile(r"-?[0-9]{1,18}", re.ASCII)


class RefusedError(Exception):
    """A request that is refused with an http status, and the parameter at fault, if any."""

    def __init__(self, status: int, message: str, parameter: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.parameter = parameter


def whole(least: int, most: int) -> dict[str, Any]:
    """Return the schema of a whole number, both bounds included."""
    return {"type": "integer", "minimum": least, "maximum": most}


@dataclass(frozen=True)
class Parameter:
    """A parameter of an endpoint."""

    name: str
    accepted: Mapping[str, Any]  #: JSON Schema of a kind that `check` knows.
    about: str  #: For people.
    default: Any = None  #: None for nothing.
    example: Any = None  #: For the description.

    def read(self, given: str) -> Any:
        """Return the value of a text in an address, or raise `RefusedError`."""
        # `int` accepts more than a number's digits: spaces, underscores, other scripts.
        if self.accepted["type"] == "integer" and _WHOLE.fullmatch(given):
            return self.check(int(given))
        return self.check(given)

    def check(self, value: Any) -> Any:
        """Return the value of a field that came as JSON, or raise `RefusedError`."""
        match self.accepted:
            case {"minimum": least, "maximum": most}:
                fits = type(value) is int and least <= value <= most
                wanted = f"a whole number from {least} to {most}"
            case {"enum": words}:
                fits, wanted = value in words, f"one of {', '.join(words)}"
            case {"maxLength": most}:
                fits = isinstance(value, str) and 1 <= len(value) <= most
                wanted = f"a text of 1 to {most} characters"
            case _:
                fits, wanted = isinstance(value, bool), "true or false"
        if not fits:
            message = f"{self.name} must be {wanted}, not {_shortened(value)}"
            raise RefusedError(400, message, self.name)
        return value

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema with the default."""
        return {**self.accepted, **({} if self.default is None else {"default": self.default})}


def read_query(
    accepted: Sequence[Parameter], given: Mapping[str, Sequence[bytes]]
) -> dict[str, Any]:
    """Return the values of a query; RefusedError if one is unknown, repeated or not accepted."""
    _refuse_unknown(accepted, given)
    values = {}
    for parameter in accepted:
        texts = given.get(parameter.name, ())
        if len(texts) > 1:
            raise RefusedError(400, f"{parameter.name} must be given once", parameter.name)
        if not texts:
            values[parameter.name] = parameter.default
            continue
        try:
            decoded = texts[0].decode()
        except UnicodeDecodeError:
            raise RefusedError(400, f"{parameter.name} must be UTF-8", parameter.name) from None
        values[parameter.name] = parameter.read(decoded)
    return values


def read_fields(accepted: Sequence[Parameter], given: Any) -> dict[str, Any]:
    """Return the values of a JSON object; RefusedError if a field is unknown or not accepted."""
    if not isinstance(given, dict):
        raise RefusedError(400, "the body must be a JSON object")
    _refuse_unknown(accepted, given)
    return {p.name: p.check(given[p.name]) if p.name in given else p.default for p in accepted}


def _refuse_unknown(accepted: Sequence[Parameter], given: Mapping[str, Any]) -> None:
    names = [parameter.name for parameter in accepted]
    for name in given:
        if name not in names:
            known = f"there are {', '.join(names)}" if names else "there are none here"
            message = f"there is no parameter {_shortened(name)}; {known}"
            raise RefusedError(400, message, name[:100])


def _shortened(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 100 else shown[:100] + "..."
