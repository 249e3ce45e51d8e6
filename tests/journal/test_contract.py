"""What every store of a journal must do."""

import contextlib
import random

import pytest

from dask_marsched.journal.places import open_journal
from dask_marsched.journal.store import CHUNK, JournalError, Record

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
        if record.value is not None:
            table[record.key] = record.value
        else:
            table.pop(record.key, None)


def test_empty(reopened):
    assert tables(reopened()) == {"tasks": [], "graphs": []}


def test_what_is_written_is_read_again(reopened):
    items = [(key, key.encode(errors="surrogatepass") + b"\0") for key in KEYS]
    reopened().write([Record("tasks", *item) for item in items])
    assert tables(reopened()) == {"tasks": items, "graphs": []}


def test_order_is_that_of_first_insertion(reopened):
    store = reopened()
    store.write([Record("tasks", key, b"1") for key in "dacb"])
    store.write(
        [Record("tasks", "a", b"2"), Record("tasks", "d", None), Record("tasks", "e", b"1")]
    )
    store.write([Record("tasks", "d", b"3"), Record("tasks", "c", b"3")])
    store.write(
        [Record("tasks", "b", None), Record("tasks", "b", b"4"), Record("tasks", "a", b"4")]
    )
    expected = [("a", b"4"), ("c", b"3"), ("e", b"1"), ("d", b"3"), ("b", b"4")]
    assert tables(store)["tasks"] == expected
    assert tables(reopened())["tasks"] == expected


def test_tables_are_apart(reopened):
    store = reopened()
    store.write(
        [Record("tasks", "a", b"1"), Record("graphs", "a", b"2"), Record("tasks", "b", None)]
    )
    store.write([Record("graphs", "a", None), Record("other", "a", None)])
    assert tables(reopened()) == {"tasks": [("a", b"1")], "graphs": []}


@pytest.mark.parametrize("size", [0, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, 9 * CHUNK + 5])
def test_long_values(reopened, size):
    long = random.Random(0).randbytes(size)
    store = reopened()
    store.write(
        [
            Record("graphs", "a", b"1"),
            Record("graphs", "g", long),
            Record("graphs", "k" * 5000, long),
        ]
    )
    assert tables(store)["graphs"] == [("a", b"1"), ("g", long), ("k" * 5000, long)]
    store = reopened()
    store.write([Record("graphs", "g", long[: size // 3]), Record("graphs", "k" * 5000, None)])
    expected = [("a", b"1"), ("g", long[: size // 3])]
    assert tables(store)["graphs"] == expected
    store = reopened()
    assert tables(store)["graphs"] == expected
    store.write(
        [Record("graphs", "g", None), Record("graphs", "g", b"2"), Record("graphs", "a", long)]
    )
    assert tables(reopened())["graphs"] == [("a", long), ("g", b"2")]


def test_a_group_returns_the_bytes_it_wrote(reopened):
    store = reopened()
    assert store.write([Record("tasks", "ab", b"12345")]) == 7
    batch = [Record("tasks", "x", b"12345"), Record("tasks", "x", None), Record("tasks", "y", b"1")]
    assert store.write([*batch, Record("tasks", "y", b"12")]) == 1 + 3  # without x, with y
    assert store.write([]) == 0


def test_a_group_that_fails_changes_nothing(reopened):
    store = reopened()
    store.write([Record("tasks", "a", b"1"), Record("graphs", "g", b"g" * CHUNK * 2)])
    before = tables(store)
    bad = [
        Record("tasks", "a", None),
        Record("new", "n", b""),
        Record("graphs", "g", b""),
        Record("tasks", "b", 5),
    ]
    with pytest.raises(TypeError):
        store.write(bad)
    assert tables(store) == before
    store.write([Record("new", "n", b"1")])  # the table is made now
    assert {**tables(store, ["new"]), **tables(store)} == {**before, "new": [("n", b"1")]}


def test_a_tables_name_is_checked(reopened):
    with pytest.raises(ValueError, match="must be lower-case letters"):
        reopened().write([Record("tasks; DROP", "a", b"")])


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
            batch.append(generator.choice((Record(table, key, value), Record(table, key, None))))
        store.write(batch)
        apply(model, batch)
        if n % 10 == 0:
            store = reopened()
        with contextlib.suppress(StopIteration):  # a reader may end early
            next(store.read("tasks"))
        assert tables(store) == {name: list(table.items()) for name, table in model.items()}
        store.tidy()


def test_a_second_scheduler_is_refused(place, reopened):
    reopened()
    with pytest.raises(JournalError, match=r"marsched.journal.directory: .* in use by another"):
        open_journal(place, patience=0.01)


def test_a_journal_that_was_given_up_is_empty(reopened):
    store = reopened()
    store.write([Record("tasks", "a", b"1"), Record("graphs", "g", bytes(CHUNK * 2))])
    assert store.abandon()
    assert store.abandon()  # nothing is left to do
    assert tables(reopened()) == {"tasks": [], "graphs": []}


def test_another_version_is_refused(place, reopened, monkeypatch):
    reopened().write([Record("tasks", "a", b"1")])
    monkeypatch.setattr("dask_marsched.journal.versions.version", lambda name: f"{name}-0.1")
    with pytest.raises(
        Exception, match=r"with dask .*, distributed .*, this is dask dask-0.1, dist"
    ):
        reopened()
    monkeypatch.undo()
    assert tables(reopened())["tasks"] == [("a", b"1")]
