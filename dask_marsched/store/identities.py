"""What is known about objects that cannot be keys of a dict, as long as they live."""

from __future__ import annotations

import weakref
from typing import Generic, TypeVar

V = TypeVar("V")


class IdentityMap(Generic[V]):
    """A mapping from objects themselves, whatever they are equal to; it does not keep them alive.

    Objects that cannot be referenced weakly are never in it.
    """

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ref[object], V]] = {}

    def set(self, thing: object, value: V) -> None:
        """Remember a value for an object, unless it cannot be referenced weakly."""
        number = id(thing)
        entries = self._entries

        def forget(gone: weakref.ref[object]) -> None:
            # The number may be another object's by now
            there = entries.get(number)
            if there is not None and there[0] is gone:
                del entries[number]

        try:
            entries[number] = (weakref.ref(thing, forget), value)
        except TypeError:
            return

    def get(self, thing: object) -> V | None:
        """Return what is remembered for an object, or None."""
        entry = self._entries.get(id(thing))
        return entry[1] if entry is not None and entry[0]() is thing else None

    def __contains__(self, thing: object) -> bool:
        return self.get(thing) is not None

    def __len__(self) -> int:
        return len(self._entries)
