"""Keeps a journal in a directory, by SQLite in its write-ahead mode."""

import contextlib
import ctypes
import os
import socket
import sqlite3
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path

from dask_marsched.journal.directory import check_private, prepare_directory
from dask_marsched.journal.store import (
    CHUNK,
    PATIENCE,
    SETTING,
    JournalError,
    Record,
    checksum,
    decoded,
    encoded,
    net_changes,
    row_groups,
)
from dask_marsched.journal.versions import check_versions, current_versions

_APPLICATION = 0x4D415253  # marks the file as ours
# Rows of one statement. Each statement releases the interpreter's lock, and may wait milliseconds
# for it while the event loop is busy.
_ROWS = 256
_WAL_BYTES = 4 << 20  # from here on the write-ahead log is moved into the database
_PAGES = 512  # of 4096 bytes, given back at a time

_PRAGMAS = (
    # The lock against a second scheduler. It ends with the process, and forked processes do not
    # have it. First, so that no shared memory is made.
    "locking_mode = exclusive",
    "auto_vacuum = incremental",  # before the first table
    "journal_mode = wal",
    "synchronous = full",  # a group survives the machine, not only the process
    # We move the log as a whole and empty it: a torn log then never meets a newer database.
    "wal_autocheckpoint = 0",
    "secure_delete = off",  # Debian's overwrites what is deleted
)


class SQLiteStore:
    """A journal in a directory, which is made if it is not there.

    It waits ``patience`` seconds for a predecessor that is about to end. A JournalError tells that
    the directory cannot be used, is in use, or holds what cannot be read.
    """

    def __init__(self, directory: Path, patience: float = PATIENCE) -> None:
        self._directory = directory.absolute()
        self._path = self._directory / "journal.sqlite"
        self._log = self._directory / "journal.sqlite-wal"
        prepare_directory(self._directory)
        with self._explaining():
            self._create_file()
            self._connection = sqlite3.connect(
                self._path,
                timeout=patience,
                isolation_level=None,
                check_same_thread=False,
                factory=_Connection,
            )
        _connections.add(self._connection)
        try:
            with self._explaining():
                self._open()
                self._files = self._identities()
        except BaseException:
            self._connection.close()
            raise

    def _create_file(self) -> None:
        with contextlib.suppress(FileExistsError):
            os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        found = self._path.stat()
        check_private(self._path, found)
        if 0 < found.st_size < 512:  # which SQLite takes for an empty database
            raise self._corrupt("it was cut off")

    def _open(self) -> None:
        execute = self._connection.execute
        for pragma in _PRAGMAS:
            execute(f"PRAGMA {pragma}")
        execute("BEGIN EXCLUSIVE")
        holder = self._directory / "holder"  # for the message to a second scheduler
        holder.write_text(f"process {os.getpid()} on {socket.gethostname()}")
        names = execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        self._tables = {name for (name,) in names}
        if self._tables:
            self._check_file()
        else:
            execute(f"PRAGMA application_id = {_APPLICATION}")
            execute("CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT)")
            columns = "tab TEXT, key BLOB, n INTEGER, value BLOB, PRIMARY KEY (tab, key, n)"
            execute(f"CREATE TABLE part ({columns})")
            for item in current_versions().items():
                execute("INSERT INTO about VALUES (?, ?)", item)
            self._tables = {"about", "part"}
        execute("COMMIT")
        # The few values that are kept in parts.
        self._long = set(execute("SELECT DISTINCT tab, key FROM part"))

    def _check_file(self) -> None:
        execute = self._connection.execute
        (application,) = execute("PRAGMA application_id").fetchone()
        if application != _APPLICATION or "about" not in self._tables:
            raise JournalError(f"{SETTING}: {self._path} is not a journal; name another directory")
        check_versions(self._directory, dict(execute("SELECT name, value FROM about")))
        (problem,) = execute("PRAGMA quick_check(1)").fetchone()
        if problem != "ok":
            raise self._corrupt(problem)

    # --- errors ---------------------------------------------------------------------------

    @contextlib.contextmanager
    def _explaining(self) -> Iterator[None]:
        """Raise errors of the database and the file system as what they mean for the journal."""
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            # Python 3.10 tells no error codes
            if isinstance(error, sqlite3.OperationalError) and "locked" in str(error):
                raise self._in_use() from error
            if type(error) is sqlite3.DatabaseError:  # damaged, or not a database
                raise self._corrupt(error) from error
            raise JournalError(
                f"{SETTING}: the journal {self._path} cannot be used: {error}"
            ) from error

    def _in_use(self) -> JournalError:
        try:
            holder = (self._directory / "holder").read_text()
        except OSError:
            holder = "unknown"
        return JournalError(
            f"{SETTING}: {self._directory} is in use by another scheduler ({holder}); end it, or "
            "name another directory"
        )

    def _corrupt(self, cause: object) -> JournalError:
        return JournalError(
            f"{SETTING}: the journal {self._path} is damaged ({cause}). Move "
            f"{self._directory} away; the scheduler then starts with nothing"
        )

    # --- writing --------------------------------------------------------------------------

    def write(self, batch: Iterable[Record]) -> int:
        """Apply the records in order: all of them, durably, or none."""
        changes = net_changes(batch)
        tables, long = set(self._tables), set(self._long)
        written = 0
        with self._explaining():
            if self._identities() != self._files:  # where the next scheduler looks for them
                raise FileNotFoundError("it was replaced")
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                for table, (deleted, put) in changes.items():
                    self._ensure_table(table)
                    written += self._delete(table, [encoded(key) for key in deleted])
                    for rows in row_groups(put, _ROWS, CHUNK):
                        written += self._put(table, rows)
                self._connection.execute("COMMIT")
            except BaseException:
                self._tables, self._long = tables, long
                with contextlib.suppress(sqlite3.Error):
                    self._connection.execute("ROLLBACK")
                raise
            if self._log.stat().st_size > _WAL_BYTES:
                self._checkpoint()
        return written

    def _identities(self) -> dict[Path, tuple[int, int]]:
        return {path: _identity(path) for path in (self._path, self._log)}

    def _ensure_table(self, table: str) -> None:
        name = f"t_{table}"
        if name not in self._tables:
            self._connection.execute(
                f"CREATE TABLE {name} (n INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE, "
                "check_sum INTEGER NOT NULL, value BLOB NOT NULL)"
            )
            self._tables.add(name)

    def _delete(self, table: str, keys: list[bytes]) -> int:
        for key in keys:
            self._delete_parts(table, key)
        for start in range(0, len(keys), _ROWS):
            some = keys[start : start + _ROWS]
            marks = ",".join("?" * len(some))
            self._connection.execute(f"DELETE FROM t_{table} WHERE key IN ({marks})", some)
        return sum(map(len, keys))

    def _put(self, table: str, rows: list[tuple[bytes, int, bytes]]) -> int:
        values: list[object] = []
        for key, check_sum, value in rows:
            self._delete_parts(table, key)
            if len(value) > CHUNK:
                self._put_parts(table, key, value)
            values += key, check_sum, memoryview(value)[:CHUNK]
        marks = ",".join(["(?,?,?)"] * len(rows))
        self._connection.execute(
            f"INSERT INTO t_{table} (key, check_sum, value) VALUES {marks} ON CONFLICT (key) "
            "DO UPDATE SET check_sum = excluded.check_sum, value = excluded.value",
            values,
        )
        return sum(len(key) + len(value) for key, _, value in rows)

    def _put_parts(self, table: str, key: bytes, value: bytes) -> None:
        view = memoryview(value)
        for n, start in enumerate(range(CHUNK, len(value), CHUNK)):
            part = table, key, n, view[start : start + CHUNK]
            self._connection.execute("INSERT INTO part VALUES (?, ?, ?, ?)", part)
        self._long.add((table, key))

    def _delete_parts(self, table: str, key: bytes) -> None:
        if (table, key) in self._long:
            self._connection.execute("DELETE FROM part WHERE tab = ? AND key = ?", (table, key))
            self._long.discard((table, key))

    # --- reading --------------------------------------------------------------------------

    def read(self, table: str) -> Iterator[tuple[str, bytes]]:
        """Yield keys and values in the order in which the keys were put first."""
        if f"t_{table}" not in self._tables:
            return
        with self._explaining():
            execute = self._connection.execute
            parts = "SELECT value FROM part WHERE tab = ? AND key = ? ORDER BY n"
            rows = execute(f"SELECT key, check_sum, value FROM t_{table} ORDER BY n")
            for key, expected, value in rows:
                if (table, key) in self._long:
                    value = b"".join((value, *(part for (part,) in execute(parts, (table, key)))))
                if checksum(key, value) != expected:
                    raise self._corrupt(f"a value in {table} is not what was written")
                yield decoded(key), value

    # --- space ----------------------------------------------------------------------------

    def _checkpoint(self) -> None:
        self._connection.execute("PRAGMA wal_checkpoint(truncate)").fetchall()

    def tidy(self) -> bool:
        """Give a bounded part of unused space back, and return whether there is more to give."""
        with self._explaining():
            execute = self._connection.execute
            (unused,) = execute("PRAGMA freelist_count").fetchone()
            (pages,) = execute("PRAGMA page_count").fetchone()
            if unused < _PAGES or unused < pages // 4:
                return False
            # `execute` would take one step, which is one page.
            self._connection.executescript(f"PRAGMA incremental_vacuum({_PAGES})")
            self._checkpoint()
        return True

    # --- the end --------------------------------------------------------------------------

    def close(self) -> None:
        """Release the directory for the next scheduler."""
        with self._explaining():
            self._connection.close()

    def abandon(self) -> bool:
        """Remove what no longer follows the scheduler, and close.

        Where it cannot be removed, the lock is kept: no other scheduler takes it for its own.
        """
        try:
            for path in list(self._files):  # the database first: a log alone is ignored
                with contextlib.suppress(FileNotFoundError):
                    if _identity(path) == self._files[path]:
                        path.unlink()
                # Once we have closed, another's file may get the same number.
                del self._files[path]
        except OSError:
            return False
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()
        return True


def _identity(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino


class _Connection(sqlite3.Connection):
    """Can be referred to weakly."""


_connections: weakref.WeakSet[_Connection] = weakref.WeakSet()


def _never_close() -> None:
    """Keep a forked child from closing its parent's connections: that would remove the log."""
    for connection in _connections:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


os.register_at_fork(after_in_child=_never_close)
