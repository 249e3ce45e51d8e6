"""Maps objects to values by identity, without keeping the objects alive."""

from __future__ import annotations

import weakref
from typing import Generic, TypeVar

V = TypeVar("V")


class IdentityMap(Generic[V]):
    """A mapping keyed by identity; objects without weak references are never in it."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ref[object], V]] = {}

    def set(self, thing: object, value: V) -> None:
        """Store a value for an object, if that can be referenced weakly."""
        number = id(thing)
        entries = self._entries

        def forget(gone: weakref.ref[object]) -> None:
            # The id may have been reused.
            there = entries.get(number)
            if there is not None and there[0] is gone:
                del entries[number]

        try:
            entries[number] = (weakref.ref(thing, forget), value)
        except TypeError:
            return

    def get(self, thing: object) -> V | None:
        """Return the value of an object, or None."""
        entry = self._entries.get(id(thing))
        return entry[1] if entry is not None and entry[0]() is thing else None

    def __contains__(self, thing: object) -> bool:
        return self.get(thing) is not None

    def __len__(self) -> int:
        return len(self._entries)
