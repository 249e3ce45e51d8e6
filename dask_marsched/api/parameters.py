"""Parameters of the API: how each is read from a request, and how it is described."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

_WHOLE = re.compile(r"-?[0-9]{1,18}", re.ASCII)


class RefusedError(Exception):
    """A request that is not answered.

    Parameters
    ----------
    status
        The http status.
    message
        Why, for people.
    parameter
        Name of the parameter that is at fault, if one is.
    """

    def __init__(self, status: int, message: str, parameter: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.parameter = parameter


class Kind(Protocol):
    """What a parameter may be."""

    def read(self, text: str) -> Any:
        """Return the value that a text of a request stands for.

        Raises
        ------
        ValueError
            It is none; the message says what is accepted.
        """
        ...

    def check(self, value: Any) -> Any:
        """Return a value that came as JSON, as `read` does."""
        ...

    def schema(self) -> dict[str, Any]:
        """Return what is accepted as JSON Schema."""
        ...


@dataclass(frozen=True)
class Whole:
    """A whole number from `least` to `most`, both included."""

    least: int
    most: int

    def read(self, text: str) -> int:
        """Return the number."""
        # `int` accepts more than a number's digits: spaces, underscores, other scripts.
        if not _WHOLE.fullmatch(text) or not self.least <= int(text) <= self.most:
            raise ValueError(f"a whole number from {self.least} to {self.most}")
        return int(text)

    def check(self, value: Any) -> int:
        """Return the number."""
        return self.read(str(value) if type(value) is int else "")

    def schema(self) -> dict[str, Any]:
        """Return what is accepted."""
        return {"type": "integer", "minimum": self.least, "maximum": self.most}


@dataclass(frozen=True)
class Choice:
    """One of several words."""

    words: tuple[str, ...]

    def read(self, text: str) -> str:
        """Return the word."""
        if text not in self.words:
            raise ValueError(f"one of {', '.join(self.words)}")
        return text

    def check(self, value: Any) -> str:
        """Return the word."""
        return self.read(value if isinstance(value, str) else "")

    def schema(self) -> dict[str, Any]:
        """Return what is accepted."""
        return {"type": "string", "enum": list(self.words)}


@dataclass(frozen=True)
class Text:
    """A text of one to `most` characters."""

    most: int

    def read(self, text: str) -> str:
        """Return the text."""
        if not 1 <= len(text) <= self.most:
            raise ValueError(f"a text of 1 to {self.most} characters")
        return text

    def check(self, value: Any) -> str:
        """Return the text."""
        return self.read(value if isinstance(value, str) else "")

    def schema(self) -> dict[str, Any]:
        """Return what is accepted."""
        return {"type": "string", "minLength": 1, "maxLength": self.most}


@dataclass(frozen=True)
class Switch:
    """True or false."""

    def read(self, text: str) -> bool:
        """Return the value."""
        if text not in ("true", "false"):
            raise ValueError("true or false")
        return text == "true"

    def check(self, value: Any) -> bool:
        """Return the value."""
        if not isinstance(value, bool):
            raise ValueError("true or false")
        return value

    def schema(self) -> dict[str, Any]:
        """Return what is accepted."""
        return {"type": "boolean"}


@dataclass(frozen=True)
class Parameter:
    """A parameter of an endpoint.

    Attributes
    ----------
    name
        Its name.
    kind
        What it may be.
    about
        What it means, for people.
    default
        What it is where it is left out; None for nothing.
    example
        For the description; None for none.
    """

    name: str
    kind: Kind
    about: str
    default: Any = None
    example: Any = None

    def read(self, text: str) -> Any:
        """Return the value of a text of a request.

        Raises
        ------
        RefusedError
            It is not accepted.
        """
        return self._try(self.kind.read, text)

    def check(self, value: Any) -> Any:
        """Return the value of a field that came as JSON.

        Raises
        ------
        RefusedError
            It is not accepted.
        """
        return self._try(self.kind.check, value)

    def _try(self, read: Any, given: Any) -> Any:
        try:
            return read(given)
        except ValueError as accepted:
            message = f"{self.name} must be {accepted}, not {_shortened(given)}"
            raise RefusedError(400, message, self.name) from None

    def schema(self) -> dict[str, Any]:
        """Return what is accepted as JSON Schema, with the default."""
        found = self.kind.schema()
        return found if self.default is None else {**found, "default": self.default}


def read_query(
    accepted: Sequence[Parameter], given: Mapping[str, Sequence[bytes]]
) -> dict[str, Any]:
    """Return the values of all parameters of a query.

    Parameters
    ----------
    accepted
        The parameters that there are.
    given
        What the query holds, as it came.

    Raises
    ------
    RefusedError
        A parameter is unknown, stands there twice, is no UTF-8, or is not accepted.
    """
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
            text = texts[0].decode()
        except UnicodeDecodeError:
            raise RefusedError(400, f"{parameter.name} must be UTF-8", parameter.name) from None
        values[parameter.name] = parameter.read(text)
    return values


def read_fields(accepted: Sequence[Parameter], given: Any) -> dict[str, Any]:
    """Return the values of all fields of a JSON object.

    Raises
    ------
    RefusedError
        It is no object, or a field is unknown or not accepted.
    """
    if not isinstance(given, dict):
        raise RefusedError(400, "the body must be a JSON object")
    _refuse_unknown(accepted, given)
    return {p.name: p.check(given[p.name]) if p.name in given else p.default for p in accepted}


def _refuse_unknown(accepted: Sequence[Parameter], given: Mapping[str, Any]) -> None:
    names = [parameter.name for parameter in accepted]
    for name in given:
        if name not in names:
            known = f"there are {', '.join(names)}" if names else "there are none here"
            raise RefusedError(
                400, f"there is no parameter {_shortened(name)}; {known}", name[:100]
            )


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else text[:100] + "..."
