"""Keeps a journal in a PostgreSQL database, for schedulers without a disk that outlives them."""

import contextlib
import time
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

import psycopg
from psycopg import errors, sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from dask_marsched.journal.store import (
    PATIENCE,
    SETTING,
    Changes,
    JournalError,
    Record,
    checksum,
    decoded,
    encoded,
    net_changes,
    row_groups,
)
from dask_marsched.journal.versions import check_versions, current_versions

_PREFIX = "marsched_journal_"
# Timeouts after which each side notices that the other's machine is gone. The server then gives up
# the lock.
_CONNECTION = {"connect_timeout": "5", "keepalives_idle": "5", "tcp_user_timeout": "10000"}
_SESSION = (
    "SET tcp_keepalives_idle = 5",
    "SET tcp_keepalives_interval = 2",
    "SET tcp_keepalives_count = 3",
    "SET client_min_messages = warning",
)
_LOCK = f"hashtextextended('{_PREFIX}' || current_schema(), 0)"
_OURS = (
    f"relnamespace = current_schema()::regnamespace AND relkind = 'r' AND relname LIKE '{_PREFIX}%'"
)
_ROWS, _BYTES = 1 << 16, 4 << 20  # of one statement


class PostgresStore:
    """A journal in the current schema of a database.

    A lock of the session keeps a second scheduler out. A scheduler that lost it without knowing
    cannot write: each group names the group before it, and is refused if that is not the last one.
    This also tells whether a group was written whose answer was lost with the connection, and
    whether a server that took over has lost groups.

    ``url`` is as libpq takes it: ``postgresql://user@host/database``; a schema is chosen by
    ``?options=-csearch_path%3Dname``. A predecessor that is about to end, and a server that is to
    come back, are waited for ``patience`` seconds. A JournalError tells that the database cannot be
    used, is in use, or holds what cannot be read.
    """

    def __init__(self, url: str, patience: float = PATIENCE) -> None:
        self._patience = patience
        self._tables: set[str] = set()
        self._place = "the database"
        with self._explaining():
            given: dict[str, Any] = conninfo_to_dict(url)
            self._parameters = make_conninfo(**{**_CONNECTION, **given})
            self._connection = self._connect()
        try:
            with self._explaining(), self._connection.transaction():
                self._open()
        except BaseException:
            self._connection.close()
            raise

    def _connect(self, takes_lock: bool = True) -> psycopg.Connection:
        connection = psycopg.connect(self._parameters, autocommit=True)
        info = connection.info
        self._place = f"database {info.dbname} on {info.host}:{info.port}"
        try:
            for statement in _SESSION:
                connection.execute(statement)
            connection.execute(f"SET lock_timeout = {int(self._patience * 1000) or 1}")
            if takes_lock:
                connection.execute(f"SELECT pg_advisory_lock({_LOCK})")
        except BaseException:
            connection.close()
            raise
        return connection

    def _open(self) -> None:
        execute = self._connection.execute
        execute(f"CREATE TABLE IF NOT EXISTS {_PREFIX}about (name text PRIMARY KEY, value text)")
        self._check_owner()
        about: dict[str, str] = dict(execute(f"SELECT name, value FROM {_PREFIX}about").fetchall())
        self._group = f"{uuid.uuid4()} 0"
        if about:
            check_versions(self._place, about)
        # From here on a predecessor that is still alive cannot write.
        for item in {**current_versions(), "group": self._group}.items():
            execute(
                f"INSERT INTO {_PREFIX}about VALUES (%s, %s) ON CONFLICT (name) "
                "DO UPDATE SET value = excluded.value",
                item,
            )

    def _check_owner(self) -> None:
        """Refuse tables that others own or may use."""
        rows = self._connection.execute(
            "SELECT relname, relowner = current_user::regrole, EXISTS ("
            "SELECT FROM aclexplode(relacl) WHERE grantee <> relowner) FROM pg_class "
            f"WHERE {_OURS}"
        ).fetchall()
        for name, is_ours, is_granted in rows:
            if not is_ours or is_granted:
                raise JournalError(
                    f"{SETTING}: the table {name} in {self._place} belongs to another user, "
                    "or others may use it; a journal holds pickles. Revoke that, or name "
                    "another schema"
                )
        self._tables = {name.removeprefix(_PREFIX) for name, _, _ in rows} - {"about"}

    # --- errors ---------------------------------------------------------------------------

    @contextlib.contextmanager
    def _explaining(self) -> Iterator[None]:
        """Raise errors of the database as what they mean for the journal."""
        try:
            yield
        except errors.LockNotAvailable as error:
            raise JournalError(
                f"{SETTING}: the journal in {self._place} is in use by another scheduler; "
                "end it, or name another database or schema"
            ) from error
        except (errors.DataCorrupted, errors.IndexCorrupted) as error:
            raise self._corrupt(error) from error
        except psycopg.Error as error:
            raise JournalError(
                f"{SETTING}: the journal in {self._place} cannot be used: {error}"
            ) from error

    def _corrupt(self, cause: object) -> JournalError:
        return JournalError(
            f"{SETTING}: the journal in {self._place} is damaged ({cause}). Drop its tables, "
            f"{_PREFIX}*; the scheduler then starts with nothing"
        )

    # --- writing --------------------------------------------------------------------------

    def write(self, batch: Iterable[Record]) -> int:
        """Apply the records in order: all of them, durably, or none."""
        changes = net_changes(batch)
        deadline = time.monotonic() + self._patience
        with self._explaining():
            while True:
                try:
                    if self._connection.broken:
                        self._connection = self._connect()
                    return self._write(changes)
                except psycopg.OperationalError:
                    # the server restarts, or another one takes over
                    if not self._connection.broken or time.monotonic() > deadline:
                        raise
                    time.sleep(0.2)

    def _write(self, changes: Changes) -> int:
        tables = set(self._tables)
        try:
            with self._connection.transaction():
                following = self._next_group()
                with self._connection.pipeline():
                    written = sum(self._change(table, *changes[table]) for table in changes)
        except BaseException:
            self._tables = tables
            raise
        self._group = following
        return written

    def _next_group(self) -> str:
        run, _, number = self._group.partition(" ")
        following = f"{run} {int(number) + 1}"
        query = f"UPDATE {_PREFIX}about SET value = %s WHERE name = 'group' AND value IN (%s, %s)"
        # The group is written again where its answer was lost: that changes nothing.
        if not self._connection.execute(query, (following, self._group, following)).rowcount:
            raise JournalError(
                f"{SETTING}: the journal in {self._place} was taken by another scheduler, or its "
                "server has lost what was written"
            )
        return following

    def _change(self, table: str, deleted: dict[str, None], put: dict[str, bytes]) -> int:
        if table not in self._tables:
            self._create_table(table)
        keys = [encoded(key) for key in deleted]
        if keys:
            self._connection.execute(
                f"DELETE FROM {_PREFIX}{table} WHERE sha256(key) = ANY("
                "SELECT sha256(k) FROM unnest(%b::bytea[]) k)",
                (keys,),
            )
        written = sum(map(len, keys))
        for rows in row_groups(put, _ROWS, _BYTES):
            self._connection.execute(
                f"INSERT INTO {_PREFIX}{table} (key, check_sum, value) SELECT key, c, v "
                "FROM unnest(%b::bytea[], %b::bigint[], %b::bytea[]) WITH ORDINALITY "
                "AS row (key, c, v, n) ORDER BY n ON CONFLICT (sha256(key)) "
                "DO UPDATE SET check_sum = excluded.check_sum, value = excluded.value",
                [list(column) for column in zip(*rows, strict=True)],
            )
            written += sum(len(key) + len(value) for key, _, value in rows)
        return written

    def _create_table(self, table: str) -> None:
        name = _PREFIX + table
        self._connection.execute(
            f"CREATE TABLE {name} (n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, "
            "key bytea NOT NULL, check_sum bigint NOT NULL, value bytea NOT NULL)"
        )
        # of digests, as an index takes no more than some 2,700 bytes
        self._connection.execute(f"CREATE UNIQUE INDEX ON {name} (sha256(key))")
        # Pickles are not worth the time of compressing them.
        self._connection.execute(f"ALTER TABLE {name} ALTER value SET STORAGE EXTERNAL")
        self._tables.add(table)

    # --- reading --------------------------------------------------------------------------

    def read(self, table: str) -> Iterator[tuple[str, bytes]]:
        """Yield keys and values in the order in which the keys were put first."""
        if table not in self._tables:
            return
        query = f"SELECT key, check_sum, value FROM {_PREFIX}{table} ORDER BY n"
        connection = self._connection
        with (
            self._explaining(),
            connection.transaction(),  # which a cursor of the server needs
            connection.cursor("rows", binary=True) as cursor,
        ):
            for key, expected, value in cursor.execute(query):
                if checksum(key, value) != expected:
                    raise self._corrupt(f"a value in {table} is not what was written")
                yield decoded(key), value

    # --- space and the end ----------------------------------------------------------------

    def tidy(self) -> bool:
        """Do nothing: the server gives space back by itself."""
        return False

    def close(self) -> None:
        """Release the journal for the next scheduler."""
        self._connection.close()

    def abandon(self) -> bool:
        """Drop what no longer follows the scheduler, and close, also where the server is away."""
        try:
            if self._connection.closed:
                self._connection = self._connect(takes_lock=False)
            with self._connection.transaction():
                return self._drop()
        except errors.UndefinedTable:
            return True
        except psycopg.Error:
            return False
        finally:
            self._connection.close()

    def _drop(self) -> bool:
        """Drop our tables; return False while another session, maybe a lost one of ours, is in."""
        execute = self._connection.execute
        # It does not wait: a successor has the lock as long as it lives.
        (is_locked,) = execute(f"SELECT pg_try_advisory_lock({_LOCK})").fetchone() or (False,)
        query = f"SELECT value FROM {_PREFIX}about WHERE name = 'group' FOR UPDATE"
        (group,) = execute(query).fetchone() or ("",)
        # Any group of this run is ours, also an old one on a server that has lost later ones.
        if group.partition(" ")[0] != self._group.partition(" ")[0]:
            return True
        if is_locked:
            # all: a group may have made a table and its answer was lost
            for (name,) in execute(f"SELECT relname FROM pg_class WHERE {_OURS}").fetchall():
                execute(sql.SQL("DROP TABLE {}").format(sql.Identifier(name)))
        return bool(is_locked)
