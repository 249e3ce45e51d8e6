"""Finds the graphs of a journal that are needed for tasks that exist: `LivingGraphs`."""

from __future__ import annotations

import heapq
from collections.abc import Container, Iterator
from typing import Any


class LivingGraphs:
    """The keys that each graph has defined, of which the last one is that of a task.

    Graphs are named by numbers in the order of their arrival. Where a later one has defined a key
    as well, the earlier task had been forgotten. Only keys at the end are looked at, as a search of
    all would take time for each task, and only of graphs whose last task was forgotten.
    """

    def __init__(self) -> None:
        self._keys: dict[int, list[Any]] = {}
        self._by_last_key: dict[Any, int] = {}
        self._unsettled: list[int] = []  # a heap of negative numbers: the latest comes first

    def __contains__(self, number: object) -> bool:
        return number in self._keys

    def __len__(self) -> int:
        return len(self._keys)

    def keys_of(self, number: int) -> list[Any] | None:
        """Return the keys left of a graph, or None for one that is not there."""
        return self._keys.get(number)

    def add(self, number: int, keys: list[Any]) -> None:
        """Add a graph, or change its keys."""
        self.discard(number)
        self._keys[number] = keys
        heapq.heappush(self._unsettled, -number)

    def discard(self, number: int) -> None:
        """Remove a graph, if it is there."""
        keys = self._keys.pop(number, None)
        if keys and self._by_last_key.get(keys[-1]) == number:
            del self._by_last_key[keys[-1]]

    def forgotten(self, key: Any) -> None:
        """Note that a task is gone; it may be defined again."""
        number = self._by_last_key.pop(key, None)
        if number is not None:
            self._keys[number].pop()
            heapq.heappush(self._unsettled, -number)

    def settle(self, tasks: Container[Any]) -> Iterator[int]:
        """Find the last task of each graph that has lost it; yield these graphs.

        The caller may stop at any graph: the others are found the next time.
        """
        while self._unsettled:
            number = -heapq.heappop(self._unsettled)
            keys = self._keys.get(number)
            if keys is None or (keys and self._by_last_key.get(keys[-1]) == number):
                continue
            self._settle(number, keys, tasks)
            yield number

    def _settle(self, number: int, keys: list[Any], tasks: Container[Any]) -> None:
        _drop_last(keys, tasks)
        while keys and (other := self._by_last_key.get(keys[-1])) is not None and other > number:
            defined_again = set(self._keys[other])
            keys[:] = [key for key in keys if key not in defined_again]
            _drop_last(keys, tasks)
        if keys:
            earlier = self._by_last_key.get(keys[-1])
            self._by_last_key[keys[-1]] = number
            if earlier is not None:
                heapq.heappush(self._unsettled, -earlier)


def _drop_last(keys: list[Any], tasks: Container[Any]) -> None:
    while keys and keys[-1] not in tasks:
        keys.pop()
