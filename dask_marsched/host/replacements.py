"""Replaces attributes and handlers of distributed's objects until they are restored."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any


class Replacements(ExitStack):
    """What was replaced in running objects: `close` restores it in reverse order. Idempotent."""

    def attribute(self, owner: Any, name: str, value: Any) -> Any:
        """Replace an attribute of an object, never of its class; return what was there."""
        before = getattr(owner, name)
        if name in getattr(owner, "__dict__", (name,)):
            self.callback(setattr, owner, name, before)
        else:
            self.callback(vars(owner).pop, name, None)  # others may have removed it since
        setattr(owner, name, value)
        return before

    def entry(self, table: dict[str, Any], key: str, value: Any) -> Any:
        """Replace an entry of a table; return what was there."""
        before = table[key]
        self.callback(table.__setitem__, key, before)
        table[key] = value
        return before
