"""Keeps values over time in bounded memory."""

from __future__ import annotations

from collections.abc import Sequence


class Series:
    """At most `most` rows: if full, every second row goes and the seconds between rows double."""

    def __init__(self, names: Sequence[str], most: int = 240, every: float = 1.0) -> None:
        self.names = tuple(names)
        self.every = every
        self._most = most
        self._times: list[float] = []
        self._rows: list[Sequence[float]] = []
        self._due = float("-inf")

    def due(self, now: float) -> bool:
        """Whether another row is due at `now`, in seconds."""
        return now >= self._due

    def add(self, now: float, row: Sequence[float]) -> None:
        """Add a row, not before the time of the last row."""
        if len(self._times) == self._most:
            del self._times[1::2], self._rows[1::2]
            self.every *= 2
        if self._times:
            now = max(now, self._times[-1])
        self._times.append(now)
        self._rows.append(tuple(row))
        self._due = now + self.every

    def to_dict(self) -> dict[str, list[float]]:
        """Return ``time`` and the values of each name."""
        columns = [list(column) for column in zip(*self._rows, strict=True)]
        if not columns:
            columns = [[] for _ in self.names]
        return {"time": list(self._times), **dict(zip(self.names, columns, strict=True))}
