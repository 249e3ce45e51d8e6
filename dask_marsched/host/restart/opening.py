"""Opens the journal of a scheduler, with what the one before has left: `open_rows`."""

from __future__ import annotations

import contextlib

from dask_marsched.host.restart import records
from dask_marsched.journal.places import open_journal
from dask_marsched.journal.store import PATIENCE, SETTING, JournalError, JournalStore, Record

#: Seconds to wait for a journal on a scheduler that is running already.
_WHILE_RUNNING = 0.5
#: Tables of what a scheduler leaves that dies, and not one that ends in order.
_WORK = (records.GRAPHS, records.SESSIONS, records.OBJECTS)

#: Keys and values by table.
Rows = dict[str, list[tuple[str, bytes]]]


def open_rows(place: str, is_late: bool) -> tuple[JournalStore, Rows]:
    """Open a journal; return it with what a scheduler goes on with.

    One that runs already, as a client registers the plugin late, has work of its own: it must not
    wait for the journal of another one, and cannot go on with it. A JournalError says what to do.
    """
    store = open_journal(place, _WHILE_RUNNING if is_late else PATIENCE)
    try:
        rows = {table: list(store.read(table)) for table in records.TABLES}
        if not is_late:
            return store, rows
        if any(rows[table] for table in _WORK):
            raise JournalError(
                f"{SETTING}: {place} holds the work of another scheduler, which can go on with it "
                "only if it starts with this journal; name another directory, or delete it"
            )
        store.write(Record(table, key, None) for table in rows for key, _ in rows[table])
        return store, {table: [] for table in rows}
    except BaseException:
        with contextlib.suppress(JournalError):
            store.close()
        raise
