"""How many chunks a worker mapped from its neighbours, and how many it was sent."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class TransferCounters:
    """Counts since the transfer was installed.

    Attributes
    ----------
    by_handle, bytes_by_handle
        Chunks, and bytes of them, that were mapped instead of fetched.
    by_comm, bytes_by_comm
        Chunks, and bytes of them, that were fetched as in stock Dask.
    adopted
        Chunks that were taken over from workers that died.
    fallbacks
        Of those by connection, the large ones of peers of this host, by why they were not
        mapped: ``failed``, or ``not published``: the peer could or would not.
    """

    by_handle: int = 0
    bytes_by_handle: int = 0
    by_comm: int = 0
    bytes_by_comm: int = 0
    adopted: int = 0
    fallbacks: Counter[str] = field(default_factory=Counter)
