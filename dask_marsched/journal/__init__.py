"""The journal: what a scheduler must know to go on after it died, in small keyed tables on disk.

A store keeps the tables (`store.py`), in a directory or on a database server (`places.py`).
`JournalWriter` writes beside the event loop.
"""

from dask_marsched.journal.places import open_journal
from dask_marsched.journal.store import (
    PATIENCE,
    Delete,
    JournalCorruptError,
    JournalError,
    JournalInUseError,
    JournalStore,
    JournalVersionError,
    Put,
    Record,
)
from dask_marsched.journal.writer import JournalWriter

__all__ = [
    "PATIENCE",
    "Delete",
    "JournalCorruptError",
    "JournalError",
    "JournalInUseError",
    "JournalStore",
    "JournalVersionError",
    "JournalWriter",
    "Put",
    "Record",
    "open_journal",
]
