"""Replaces attributes and handlers of distributed's objects until they are restored."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import ExitStack
from functools import update_wrapper
from typing import Any
from weakref import WeakMethod


def weakly(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls a method while its object exists, but does not keep it."""
    # `distributed.core._expects_comm` remembers every handler that it was asked about.
    reference = WeakMethod(method)

    def call(*args: Any, **kwargs: Any) -> Any:
        there = reference()
        assert there is not None, "the handler was removed before"
        return there(*args, **kwargs)

    update_wrapper(call, method)
    del call.__dict__["__wrapped__"]  # the method itself
    vars(call)["__signature__"] = inspect.signature(method)
    return call


class Replacements(ExitStack):
    """Replaces attributes and entries; `close` restores them in reverse order. Idempotent."""

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
