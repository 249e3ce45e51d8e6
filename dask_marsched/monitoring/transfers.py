"""Counts the bytes of results that workers fetch from each other."""

from __future__ import annotations

from typing import Any

from dask_marsched.core.moved_bytes import MovedBytes
from dask_marsched.core.series import Series


class Transfers:
    """Counts transfers between each pair of workers and over time, in bytes.

    `unsure` sums results with several possible senders, each of which counts a part.
    """

    def __init__(self) -> None:
        self.moved = MovedBytes()
        self.unsure = 0.0
        self.series = Series(("moved",))

    def fetched(self, ts: Any, receiver: Any) -> int:
        """Count a result that a worker has fetched; return the bytes that were moved."""
        holders = [ws for ws in ts.who_has if ws is not receiver]
        if not holders:
            return 0  # adopted from a worker that died
        # A worker fetches from its own host if it can; beyond that the sender is unknown.
        holders = [ws for ws in holders if ws.host == receiver.host] or holders
        nbytes: int = ts.get_nbytes()
        if len(holders) > 1:
            self.unsure += nbytes
        for ws in holders:
            self.moved.add(ws.address, receiver.address, nbytes / len(holders))
        return nbytes

    def sample(self, now: float) -> None:
        """Add the total to the series if it is time."""
        if self.series.due(now):
            self.series.add(now, (self.moved.total,))
