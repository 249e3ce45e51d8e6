"""Keeps the keys that each client wants, in a form that is cheap to journal: `WantedKeys`.

A graph arrives with the keys that its client wants. What is released of them later is a bit for
each key, in chunks that are written when they have changed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

#: Keys whose bits are written together: a kibibyte.
CHUNK = 8192


@dataclass
class _WantedOfGraph:
    client: str
    keys: list[Any]
    released: bytearray = field(init=False)
    left: int = 0  # keys for which the graph stands

    def __post_init__(self) -> None:
        self.released = bytearray((len(self.keys) + 7) // 8)

    def release(self, position: int) -> None:
        self.released[position >> 3] |= 1 << (position & 7)
        self.left -= 1

    def is_released(self, position: int) -> bool:
        return bool(self.released[position >> 3] & 1 << (position & 7))


class WantedKeys:
    """The keys that clients want: those of their graphs, and single ones."""

    def __init__(self) -> None:
        self._graphs: dict[int, _WantedOfGraph] = {}
        # Graph and position of each wanted key of a client; (-1, 0) for one that came with none.
        self._where: dict[str, dict[Any, tuple[int, int]]] = {}
        self._changed_chunks: set[tuple[int, int]] = set()
        self._changed_singles: dict[tuple[str, Any], bool] = {}
        self._unwanted: list[int] = []

    def graph_came(
        self, number: int, client: str, keys: Iterable[Any], released: Mapping[int, bytes] = {}
    ) -> None:
        """Add a graph; `released` are chunks of bits that were written before."""
        graph = self._graphs[number] = _WantedOfGraph(client, list(keys))
        for chunk, bits in released.items():
            start = chunk * CHUNK // 8
            graph.released[start : start + len(bits)] = bits
        where = self._where.setdefault(client, {})
        for position, key in enumerate(graph.keys):
            if not (released and graph.is_released(position)):
                before = where.get(key)
                if before is not None:  # from here on, this graph stands for the key
                    self._drop(client, key, before)
                where[key] = (number, position)
                graph.left += 1

    def desires(self, client: str, keys: Iterable[Any]) -> None:
        """Add single keys."""
        where = self._where.setdefault(client, {})
        for key in keys:
            if key not in where:
                where[key] = (-1, 0)
                self._changed_singles[client, key] = True

    def releases(self, client: str, keys: Iterable[Any]) -> None:
        """Remove keys."""
        where = self._where.get(client)
        if where:
            for key in keys:
                place = where.pop(key, None)
                if place is not None:
                    self._drop(client, key, place)
            if not where:
                del self._where[client]

    def _drop(self, client: str, key: Any, place: tuple[int, int]) -> None:
        number, position = place
        if number < 0:
            self._changed_singles[client, key] = False
        elif number in self._graphs:
            self._graphs[number].release(position)
            if not self._graphs[number].left:
                self._unwanted.append(number)
            self._changed_chunks.add((number, position // CHUNK))

    def of(self, client: str, but_of: Collection[int] = ()) -> list[Any]:
        """Return the keys that a client wants, but those for which these graphs stand."""
        where = self._where.get(client, {})
        return [key for key, (number, _) in where.items() if number not in but_of]

    def clients(self) -> list[str]:
        """Return the clients that want anything."""
        return list(self._where)

    def graphs(self) -> list[int]:
        """Return the numbers of the graphs that came and are not gone."""
        return list(self._graphs)

    def wants_of(self, number: int) -> int:
        """Return how many keys are wanted for which a graph stands."""
        return self._graphs[number].left if number in self._graphs else 0

    def unwanted(self) -> Iterator[int]:
        """Yield the graphs of which the last wanted key has gone, each once."""
        while self._unwanted:
            yield self._unwanted.pop()

    def graph_gone(self, number: int) -> int:
        """Drop a graph whose tasks nobody needs; return how many chunks of bits it can have."""
        graph = self._graphs.pop(number, None)
        if graph is None:
            return 0
        where = self._where.get(graph.client, {})
        for key in graph.keys:
            if where.get(key, (-1, 0))[0] == number:
                del where[key]
        return -(-len(graph.keys) // CHUNK)

    def changed_chunks(self) -> Iterator[tuple[int, int, bytes]]:
        """Yield graph, chunk and bits of what was released since the last call."""
        changed, self._changed_chunks = self._changed_chunks, set()
        for number, chunk in sorted(changed):
            if (graph := self._graphs.get(number)) is not None:
                yield number, chunk, bytes(graph.released[chunk * CHUNK // 8 :][: CHUNK // 8])

    def changed_singles(self) -> dict[tuple[str, Any], bool]:
        """Return the single keys that came (True) or went since the last call, by client."""
        changed, self._changed_singles = self._changed_singles, {}
        return changed
