"""What every store of a journal must do."""

import contextlib
import random

import pytest

from dask_marsched.journal import Delete, JournalInUseError, Put, open_journal
from dask_marsched.journal.store import CHUNK, Record

KEYS = ["a", "('x-1', 0)", "", "ü\0\ud800", "k" * 5000, "k" * 5000 + "l", "z"]


@pytest.fixture
def reopened(place):
    """Return a function that closes the store and opens it again."""
    store = None

    def reopen():
        nonlocal store
        if store is not None:
            store.close()
        store = open_journal(place)
        return store

    yield reopen
    if store is not None:
        store.close()


def tables(store, names=("tasks", "graphs")):
    return {name: list(store.read(name)) for name in names}


def apply(model: dict[str, dict[str, bytes]], batch: list[Record]) -> None:
    for record in batch:
        table = model.setdefault(record.table, {})
        if isinstance(record, Put):
            table[record.key] = record.value
        else:
            table.pop(record.key, None)


def test_empty(reopened):
    assert tables(reopened()) == {"tasks": [], "graphs": []}


def test_what_is_written_is_read_again(reopened):
    items = [(key, key.encode(errors="surrogatepass") + b"\0") for key in KEYS]
    reopened().write([Put("tasks", *item) for item in items])
    assert tables(reopened()) == {"tasks": items, "graphs": []}


def test_order_is_that_of_first_insertion(reopened):
    store = reopened()
    store.write([Put("tasks", key, b"1") for key in "dacb"])
    store.write([Put("tasks", "a", b"2"), Delete("tasks", "d"), Put("tasks", "e", b"1")])
    store.write([Put("tasks", "d", b"3"), Put("tasks", "c", b"3")])
    store.write([Delete("tasks", "b"), Put("tasks", "b", b"4"), Put("tasks", "a", b"4")])
    expected = [("a", b"4"), ("c", b"3"), ("e", b"1"), ("d", b"3"), ("b", b"4")]
    assert tables(store)["tasks"] == expected
    assert tables(reopened())["tasks"] == expected


def test_tables_are_apart(reopened):
    store = reopened()
    store.write([Put("tasks", "a", b"1"), Put("graphs", "a", b"2"), Delete("tasks", "b")])
    store.write([Delete("graphs", "a"), Delete("other", "a")])
    assert tables(reopened()) == {"tasks": [("a", b"1")], "graphs": []}


@pytest.mark.parametrize("size", [0, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, 9 * CHUNK + 5])
def test_long_values(reopened, size):
    long = random.Random(0).randbytes(size)
    store = reopened()
    store.write(
        [Put("graphs", "a", b"1"), Put("graphs", "g", long), Put("graphs", "k" * 5000, long)]
    )
    assert tables(store)["graphs"] == [("a", b"1"), ("g", long), ("k" * 5000, long)]
    store = reopened()
    store.write([Put("graphs", "g", long[: size // 3]), Delete("graphs", "k" * 5000)])
    expected = [("a", b"1"), ("g", long[: size // 3])]
    assert tables(store)["graphs"] == expected
    store = reopened()
    assert tables(store)["graphs"] == expected
    store.write([Delete("graphs", "g"), Put("graphs", "g", b"2"), Put("graphs", "a", long)])
    assert tables(reopened())["graphs"] == [("a", long), ("g", b"2")]


def test_a_group_returns_the_bytes_it_wrote(reopened):
    store = reopened()
    assert store.write([Put("tasks", "ab", b"12345")]) == 7
    batch = [Put("tasks", "x", b"12345"), Delete("tasks", "x"), Put("tasks", "y", b"1")]
    assert store.write([*batch, Put("tasks", "y", b"12")]) == 1 + 3  # Delete x, Put y
    assert store.write([]) == 0


def test_a_group_that_fails_changes_nothing(reopened):
    store = reopened()
    store.write([Put("tasks", "a", b"1"), Put("graphs", "g", b"g" * CHUNK * 2)])
    before = tables(store)
    bad = [
        Delete("tasks", "a"),
        Put("new", "n", b""),
        Put("graphs", "g", b""),
        Put("tasks", "b", 5),
    ]
    with pytest.raises(TypeError):
        store.write(bad)
    assert tables(store) == before
    store.write([Put("new", "n", b"1")])  # the table is made now
    assert {**tables(store, ["new"]), **tables(store)} == {**before, "new": [("n", b"1")]}


def test_a_tables_name_is_checked(reopened):
    with pytest.raises(ValueError, match="must be lower-case letters"):
        reopened().write([Put("tasks; DROP", "a", b"")])


def test_random_groups(reopened):
    """Thousands of records in groups of all sizes, against a dict."""
    generator = random.Random(1)
    model: dict[str, dict[str, bytes]] = {"tasks": {}, "graphs": {}}
    store = reopened()
    for n in range(40):
        batch: list[Record] = []
        for _ in range(generator.choice((1, 10, 1000))):
            table, key = generator.choice(("tasks", "graphs")), str(generator.randrange(500))
            value = generator.randbytes(generator.choice((0, 10, 3000)))
            batch.append(generator.choice((Put(table, key, value), Delete(table, key))))
        store.write(batch)
        apply(model, batch)
        if n % 10 == 0:
            store = reopened()
        with contextlib.suppress(StopIteration):  # a reader may end early
            next(store.read("tasks"))
        assert tables(store) == {name: list(table.items()) for name, table in model.items()}
        store.tidy()


def test_size_follows_what_is_kept(reopened):
    store = reopened()
    empty = store.size()
    store.write([Put("graphs", "g", random.Random(0).randbytes(8 << 20))])
    assert store.size() >= empty + (8 << 20)


def test_a_second_scheduler_is_refused(place, reopened):
    reopened()
    with pytest.raises(
        JournalInUseError, match=r"marsched.journal.directory: .* in use by another"
    ):
        open_journal(place, patience=0.01)


def test_a_journal_that_was_given_up_is_empty(reopened):
    store = reopened()
    store.write([Put("tasks", "a", b"1"), Put("graphs", "g", bytes(CHUNK * 2))])
    assert store.abandon()
    assert store.abandon()  # nothing is left to do
    assert tables(reopened()) == {"tasks": [], "graphs": []}


def test_another_version_is_refused(place, reopened, monkeypatch):
    reopened().write([Put("tasks", "a", b"1")])
    monkeypatch.setattr("dask_marsched.journal.versions.version", lambda name: f"{name}-0.1")
    with pytest.raises(
        Exception, match=r"with dask .*, distributed .*, this is dask dask-0.1, dist"
    ):
        reopened()
    monkeypatch.undo()
    assert tables(reopened())["tasks"] == [("a", b"1")]
