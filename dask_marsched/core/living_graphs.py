"""Which graphs of a journal are needed for tasks that exist: `drop_dead_keys`."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any


def drop_dead_keys(defined: Mapping[int, list[Any]], tasks: Container[Any]) -> None:
    """Shorten the keys that each graph has defined, until it defines the last task of them.

    Graphs are named by numbers in the order of their arrival. Where a later one has defined a key
    as well, the earlier task had been forgotten. Only keys at the end are looked at, as a search of
    all would take time for each task.
    """
    by_last_key: dict[Any, list[Any]] = {}
    for number in sorted(defined, reverse=True):
        keys = defined[number]
        _drop_last(keys, tasks)
        while keys and (later := by_last_key.get(keys[-1])) is not None:
            defined_again = set(later)
            keys[:] = [key for key in keys if key not in defined_again]
            _drop_last(keys, tasks)
        if keys:
            by_last_key[keys[-1]] = keys


def _drop_last(keys: list[Any], tasks: Container[Any]) -> None:
    while keys and keys[-1] not in tasks:
        keys.pop()
