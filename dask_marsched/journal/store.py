"""Defines what a store of the journal does: it writes groups of changes to tables, whole or not."""

import re
import zlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

SETTING = "marsched.journal.directory"
#: Seconds to wait for a predecessor that is about to end, or for a server that is away. A killed
#: process releases its memory first, then its locks.
PATIENCE = 20.0
CHUNK = 1 << 20  # bytes; longer values are kept in parts of this size


class JournalError(Exception):
    """The journal cannot be opened or written; the message says what to do."""


class Record(NamedTuple):
    """Sets the value of a key; with None, removes the key if it is there.

    A key keeps its place in the table until it is removed.
    """

    table: str
    key: str
    value: bytes | None


class JournalStore(Protocol):
    """Keyed tables that survive the process. One thread at a time may use a store.

    Where nothing else is said, methods raise a JournalError if the place cannot be used.
    """

    def write(self, batch: Iterable[Record]) -> int:
        """Apply the records in order: all of them, durably, or none.

        Return the bytes of keys and values that were written: less than those of the records where
        later ones overrule earlier ones.
        """

    def read(self, table: str) -> Iterator[tuple[str, bytes]]:
        """Yield keys and values in the order in which the keys were put first.

        The table must not be written meanwhile.
        """

    def tidy(self) -> bool:
        """Give a bounded part of unused space back, and return whether there is more to give."""

    def close(self) -> None:
        """Release the place for the next scheduler."""

    def abandon(self) -> bool:
        """Remove what is kept, as it no longer follows the scheduler, and close.

        Return whether nothing of this store is left. If not, try again later, and close in the end.
        Never raises, and leaves what a successor keeps in the same place.
        """


#: The net effect of a group on each table: first these keys go, then these values come.
Changes = dict[str, tuple[dict[str, None], dict[str, bytes]]]


def net_changes(batch: Iterable[Record]) -> Changes:
    """Return what a group changes in each table; what is overruled within the group is left out."""
    changes: Changes = {}
    for table, key, value in batch:
        if table not in changes:
            if not re.fullmatch("[a-z][a-z_]{0,30}", table):  # it becomes part of statements
                raise ValueError(f"a table's name must be lower-case letters and _, not {table!r}")
            changes[table] = {}, {}
        deleted, put = changes[table]
        if value is None:
            put.pop(key, None)
            deleted[key] = None
        else:
            put[key] = value
    return changes


def row_groups(
    items: dict[str, bytes], most_rows: int, most_bytes: int
) -> Iterator[list[tuple[bytes, int, bytes]]]:
    """Yield keys, checksums and values for statements of so many rows, or just over the bytes."""
    rows: list[tuple[bytes, int, bytes]] = []
    waiting = 0
    for name, value in items.items():
        key = encoded(name)
        rows.append((key, checksum(key, value), value))
        waiting += len(key) + len(value)
        if len(rows) == most_rows or waiting >= most_bytes:
            yield rows
            rows, waiting = [], 0
    if rows:
        yield rows


def encoded(key: str) -> bytes:
    """Return a key as bytes: a database's text has no lone surrogates or zeros, Dask's keys may."""
    return key.encode("utf-8", "surrogatepass")


def decoded(key: bytes) -> str:
    """Return the key of these bytes."""
    return key.decode("utf-8", "surrogatepass")


def checksum(key: bytes, value: bytes) -> int:
    """Return what is kept beside a value to find damage that the database does not notice."""
    return zlib.crc32(value, zlib.crc32(key))
