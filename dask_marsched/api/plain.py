"""Converts values to JSON, without NaN and with text as keys."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

#: Deeper than any of our answers; values below it become text.
_DEEPEST = 20


def to_json(value: Any) -> str:
    """Return valid JSON: NaN and infinities become null; keys and other types become text."""
    try:
        return json.dumps(value, allow_nan=False, check_circular=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError):
        return json.dumps(plain(value), allow_nan=False, separators=(",", ":"))


def plain(value: Any, depth: int = 0) -> Any:
    """Return a value converted to the types of JSON."""
    if value is None or isinstance(value, bool | int | str):
        # Subclasses too: enumerations, and numbers of other libraries.
        return value if type(value) in (bool, int, str, type(None)) else _base(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if depth >= _DEEPEST:
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, depth + 1) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((plain(item, depth + 1) for item in value), key=str)
    item = getattr(value, "item", None)  # a scalar of NumPy's
    if callable(item) and getattr(value, "shape", None) == ():
        return plain(item(), depth + 1)
    return str(value)


def _base(value: Any) -> int | str:
    return str(value) if isinstance(value, str) else int(value)
