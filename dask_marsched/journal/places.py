"""Chooses the store of a journal by its place."""

from pathlib import Path

from dask_marsched.installation import how_to_install
from dask_marsched.journal.sqlite_store import SQLiteStore
from dask_marsched.journal.store import PATIENCE, SETTING, JournalError, JournalStore


def open_journal(place: str | Path, patience: float = PATIENCE) -> JournalStore:
    """Open a journal: a directory, or a database as postgresql://user@host/database.

    It waits `patience` seconds for a predecessor that is about to end. A JournalError says what to
    do about a place that cannot be used.
    """
    scheme, separator, _ = str(place).partition("://")
    if not separator or scheme == "file":
        return SQLiteStore(Path(str(place).removeprefix("file://")).expanduser(), patience)
    if scheme in ("postgresql", "postgres"):
        try:
            from dask_marsched.journal.postgres_store import PostgresStore
        except ImportError as error:
            raise JournalError(
                f"{SETTING}: a journal in PostgreSQL needs psycopg ({error}): "
                f"run {how_to_install('postgresql')}"
            ) from error
        return PostgresStore(str(place), patience)
    raise JournalError(
        f"{SETTING}: no journal can be kept in {scheme}://; name a directory, or a database as "
        "postgresql://user@host/database"
    )
