"""What is particular to PostgreSQL: fencing, servers that restart, other users."""

import sys
import threading
from collections.abc import Iterator

import pytest

from dask_marsched.journal.places import open_journal
from dask_marsched.journal.store import JournalError, Record
from dask_marsched.journal.writer import JournalWriter
from tests.journal.servers import Server, running_server

psycopg = pytest.importorskip("psycopg")
PREFIX = "marsched_journal_"
TIMEOUT = 20.0


@pytest.fixture
def store(schema):
    store = open_journal(schema)
    yield store
    store.close()


@pytest.fixture
def admin(schema) -> Iterator["psycopg.Connection"]:
    with psycopg.connect(schema, autocommit=True) as connection:
        yield connection


def end_sessions(admin) -> None:
    """Cut the connections that hold the lock of the journal in this schema."""
    lock = f"hashtextextended('{PREFIX}' || current_schema(), 0)"
    admin.execute(
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_locks WHERE locktype = 'advisory' "
        f"AND granted AND (classid::bigint << 32 | objid::bigint) = {lock}"
    )


def test_a_scheduler_that_lost_its_lock_cannot_write(schema, store, admin):
    store.write([Record("tasks", "a", b"1")])
    end_sessions(admin)
    other = open_journal(schema)
    other.close()  # the lock is free again, but the first has been replaced
    with pytest.raises(JournalError, match="was taken by another scheduler"):
        store.write([Record("tasks", "b", b"1")])
    assert store.abandon()  # which leaves the other's alone
    other = open_journal(schema)
    assert list(other.read("tasks")) == [("a", b"1")]
    assert store.abandon()  # at once, though the other has the lock
    other.write([Record("tasks", "b", b"2")])
    assert list(other.read("tasks")) == [("a", b"1"), ("b", b"2")]
    other.close()


def test_a_journal_is_not_removed_while_another_session_has_the_lock(schema, store, admin):
    """It may be a successor that has yet to take the place, or a lost session of our own."""
    store.write([Record("tasks", "a", b"1")])
    end_sessions(admin)
    admin.execute(f"SELECT pg_advisory_lock(hashtextextended('{PREFIX}' || current_schema(), 0))")
    assert not store.abandon()
    assert admin.execute(f"SELECT count(*) FROM {PREFIX}tasks").fetchone() == (1,)
    admin.execute("SELECT pg_advisory_unlock_all()")
    assert store.abandon()
    assert admin.execute(f"SELECT to_regclass('{PREFIX}about')").fetchone() == (None,)


def test_tables_whose_making_was_not_answered_are_removed(schema, store, admin):
    store.write([Record("tasks", "a", b"1")])
    admin.execute(f"CREATE TABLE {PREFIX}graphs (LIKE {PREFIX}tasks)")
    assert store.abandon()
    assert admin.execute(f"SELECT to_regclass('{PREFIX}graphs')").fetchone() == (None,)


def test_a_cut_connection_is_made_again(schema, store, admin):
    store.write([Record("tasks", "a", b"1"), Record("tasks", "b", b"1")])
    end_sessions(admin)
    store.write([Record("tasks", "a", b"2"), Record("tasks", "b", None)])
    store.write([Record("tasks", "c", b"3")])
    assert list(store.read("tasks")) == [("a", b"2"), ("c", b"3")]


def test_a_group_whose_answer_was_lost_is_not_refused(store, admin):
    store.write([Record("tasks", "a", b"1")])
    following = "split_part(value, ' ', 1) || ' 2'"
    admin.execute(f"UPDATE {PREFIX}about SET value = {following} WHERE name = 'group'")
    store.write([Record("tasks", "a", b"2")])
    assert list(store.read("tasks")) == [("a", b"2")]


def test_a_server_that_lost_groups_is_noticed(store, admin):
    before = admin.execute(f"SELECT value FROM {PREFIX}about WHERE name = 'group'").fetchone()
    store.write([Record("tasks", "a", b"1")])
    store.write([Record("tasks", "b", b"1")])
    admin.execute(f"UPDATE {PREFIX}about SET value = %s WHERE name = 'group'", before)
    with pytest.raises(JournalError, match="or its server has lost what was written"):
        store.write([Record("tasks", "c", b"1")])
    assert store.abandon()  # nobody else has taken it
    assert admin.execute(f"SELECT to_regclass('{PREFIX}tasks')").fetchone() == (None,)


def test_a_damaged_value_is_found(store, admin):
    store.write([Record("tasks", "a", b"1")])
    admin.execute(f"UPDATE {PREFIX}tasks SET value = 'x'")
    with pytest.raises(JournalError, match=r"is damaged .*Drop its tables, marsched_j"):
        list(store.read("tasks"))


def test_tables_that_others_may_use_are_refused(schema, admin):
    open_journal(schema).close()
    admin.execute(f"CREATE ROLE reader{admin.info.backend_pid}")
    admin.execute(f"GRANT SELECT ON {PREFIX}about TO reader{admin.info.backend_pid}")
    with pytest.raises(JournalError, match=r"the table marsched_journal_about .* others may"):
        open_journal(schema)


def test_tables_of_another_user_are_refused(postgres, schema, admin):
    open_journal(schema).close()
    role = f"owner{admin.info.backend_pid}"
    admin.execute(f"CREATE ROLE {role}")
    admin.execute(f"ALTER TABLE {PREFIX}about OWNER TO {role}")
    with pytest.raises(JournalError, match=r"marsched_journal_about .* belongs to another user"):
        open_journal(schema)


def test_a_server_that_is_not_there(tmp_path):
    with pytest.raises(JournalError, match=r"journal.directory: .*cannot be used: connection"):
        open_journal(f"postgresql://user:secret@/postgres?host={tmp_path}")


def test_a_url_that_is_not_understood():
    with pytest.raises(JournalError, match=r"marsched.journal.directory: .*invalid"):
        open_journal("postgresql://user:secret@/postgres?nothing=1")


def test_without_psycopg(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    monkeypatch.delitem(sys.modules, "dask_marsched.journal.postgres_store", raising=False)
    with pytest.raises(JournalError, match=r"pip install '.\[postgresql\]'"):
        open_journal("postgresql://user@/postgres")


@pytest.fixture
def own_server(postgres) -> Iterator[Server]:
    with running_server() as server:
        yield server


@pytest.mark.extended
def test_a_server_that_restarts(own_server):
    store = open_journal(own_server.url())
    store.write([Record("tasks", "a", b"1")])
    own_server.stop()
    starting = threading.Timer(0.5, own_server.start)
    starting.start()
    store.write([Record("tasks", "b", b"1")])  # waits
    starting.join()
    assert list(store.read("tasks")) == [("a", b"1"), ("b", b"1")]
    store.close()


@pytest.mark.extended
def test_a_journal_that_failed_is_removed_when_the_server_is_back(own_server):
    """The next scheduler would go on with what is long over."""
    failures: list[JournalError] = []
    writer = JournalWriter(open_journal(own_server.url(), patience=0.1), failures.append)
    writer.put("tasks", "a", b"1")
    assert writer.flush().result(TIMEOUT)
    own_server.stop()
    writer.put("tasks", "b", b"1")
    assert not writer.flush().result(TIMEOUT)
    own_server.start()
    writer._thread.join(TIMEOUT)  # it ends when nothing is left
    assert not writer._thread.is_alive()
    with psycopg.connect(own_server.url(), autocommit=True) as connection:
        assert connection.execute(f"SELECT to_regclass('{PREFIX}tasks')").fetchone() == (None,)
    writer.close()
    assert len(failures) == 1
