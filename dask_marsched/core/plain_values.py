"""Converts values to those that JSON has."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from typing import Any


def plain(value: Any) -> Any:
    """Return a value converted to the types of JSON."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, numbers.Integral):  # NumPy's, too
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value) if math.isfinite(value) else None
    return str(value)
