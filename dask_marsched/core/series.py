"""Values over time, in bounded memory whatever the time."""

from __future__ import annotations

from collections.abc import Sequence


class Series:
    """Rows of values over the whole time since the first of them.

    When it is full every second row is dropped and from then on half as many are taken: the whole
    is always there, between half as densely and as densely as there is room for.

    Parameters
    ----------
    names
        What the values of a row are.
    most
        Rows that are kept, at least 4.
    every
        Least seconds between two rows, to begin with.

    Raises
    ------
    ValueError
        ``most`` is below 4, or ``every`` is not above 0.
    """

    def __init__(self, names: Sequence[str], most: int = 240, every: float = 1.0) -> None:
        if most < 4 or not every > 0:
            raise ValueError(f"a series keeps 4 rows or more, over time, not {most} each {every} s")
        self.names = tuple(names)
        self.every = every
        self._most = most
        self._times: list[float] = []
        self._rows: list[Sequence[float]] = []
        self._due = float("-inf")

    def __len__(self) -> int:
        return len(self._times)

    def due(self, now: float) -> bool:
        """Whether it is time for another row; `now` in seconds."""
        return now >= self._due

    def add(self, now: float, row: Sequence[float]) -> None:
        """Add a row; earlier than the last one it is taken for as late as that.

        Raises
        ------
        ValueError
            It has not a value for each name.
        """
        if len(row) != len(self.names):
            raise ValueError(f"{len(row)} values for {', '.join(self.names)}")
        if len(self._times) == self._most:
            del self._times[1::2], self._rows[1::2]
            self.every *= 2
        if self._times:
            now = max(now, self._times[-1])
        self._times.append(now)
        self._rows.append(tuple(row))
        self._due = now + self.every

    def to_dict(self) -> dict[str, list[float]]:
        """Return ``time`` and, for each name, the values at these times."""
        columns = [list(column) for column in zip(*self._rows, strict=True)]
        if not columns:
            columns = [[] for _ in self.names]
        return {"time": list(self._times), **dict(zip(self.names, columns, strict=True))}
