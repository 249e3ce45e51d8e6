"""Maps objects to values by identity, without keeping the objects alive."""

from __future__ import annotations

import weakref
from functools import partial
from typing import Generic, TypeVar

V = TypeVar("V")


class IdentityMap(Generic[V]):
    """A mapping keyed by identity; objects without weak references are never in it."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ref[object], V]] = {}

    def set(self, thing: object, value: V) -> None:
        """Store a value for an object, if that can be referenced weakly."""
        number = id(thing)
        # Not a function in Python, which an interrupt of the task in this thread could end. An
        # object has ended only after this call, so that its id cannot have been reused.
        forget = partial(self._entries.pop, number)
        try:
            self._entries[number] = (weakref.ref(thing, forget), value)
        except TypeError:
            return

    def get(self, thing: object) -> V | None:
        """Return the value of an object, or None."""
        entry = self._entries.get(id(thing))
        return entry[1] if entry is not None and entry[0]() is thing else None

    def __contains__(self, thing: object) -> bool:
        return self.get(thing) is not None
