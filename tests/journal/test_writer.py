"""The writer beside the event loop: groups, coalescing, failure, kills."""

import asyncio
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_marsched.journal import writer as writer_module
from dask_marsched.journal.places import open_journal
from dask_marsched.journal.store import JournalError, Record
from dask_marsched.journal.writer import JournalWriter
from tests.journal.test_contract import apply

TIMEOUT = 60.0


class FakeStore:
    """Keeps groups in a list; waits before each where it is told to."""

    def __init__(self) -> None:
        self.groups: list[list[Record]] = []
        self.entered, self.go = threading.Event(), threading.Event()
        self.go.set()
        self.error: Exception | None = None
        self.ended = threading.Event()
        self.end = ""
        self.removals = [True]  # what each try gives; the last one for good
        self.tries = threading.Semaphore(0)
        self.untidy = 0
        self.tidied = threading.Event()

    def write(self, batch):
        self.entered.set()
        assert self.go.wait(TIMEOUT)
        if self.error:
            raise self.error
        self.groups.append(list(batch))
        return len(self.groups[-1])

    def tidy(self):
        self.untidy = max(self.untidy - 1, 0)
        if not self.untidy:
            self.tidied.set()
        return self.untidy > 0

    def _end(self, how):
        self.end = how
        self.ended.set()

    def close(self):
        self._end("closed")

    def abandon(self):
        is_removed = self.removals[0]
        if len(self.removals) > 1:
            del self.removals[0]
        if is_removed:
            self._end("abandoned")
        self.tries.release()
        return is_removed


@pytest.fixture
def store():
    return FakeStore()


@pytest.fixture
def failures():
    return []


@pytest.fixture
def writer(store, failures):
    writer = JournalWriter(store, failures.append)
    yield writer
    store.go.set()
    writer.close(TIMEOUT)


def blocked(store, writer):
    """Have the thread wait in the write of a first group."""
    store.go.clear()
    writer.put("tasks", "first", b"")
    assert store.entered.wait(TIMEOUT)


def test_records_of_a_moment_are_one_group(store, writer):
    blocked(store, writer)
    for n in range(100):
        writer.put("tasks", str(n), b"1")
    writer.delete("tasks", "5")
    assert writer.lag_seconds > 0
    store.go.set()
    assert writer.flush().result(TIMEOUT)
    assert [len(group) for group in store.groups] == [1, 101]
    assert store.groups[1][-1] == Record("tasks", "5", None)
    assert writer.bytes_written == 102
    assert writer.lag_seconds == 0.0


async def test_flush_in_an_event_loop(store, writer):
    assert await asyncio.wrap_future(writer.flush())
    writer.put("tasks", "a", b"1")
    assert await asyncio.wrap_future(writer.flush())
    assert store.groups == [[Record("tasks", "a", b"1")]]


def test_close_writes_all(store, writer):
    writer.put("tasks", "a", b"1")
    assert writer.close(TIMEOUT)
    assert store.groups == [[Record("tasks", "a", b"1")]]
    assert store.end == "closed"
    writer.put("tasks", "b", b"1")
    assert writer.close(TIMEOUT)
    assert writer.flush().result(TIMEOUT)
    assert len(store.groups) == 1


def test_records_are_written_without_a_flush(store, writer):
    writer.put("tasks", "a", b"1")
    assert store.entered.wait(TIMEOUT)


def test_space_is_given_back_while_idle(store, writer):
    store.untidy = 5
    writer.put("tasks", "a", b"1")
    assert store.tidied.wait(TIMEOUT)


@pytest.mark.parametrize("error", [JournalError("disk full"), RuntimeError("disk full")])
def test_failure_is_told_once_and_ends_the_journal(store, writer, failures, error, caplog):
    blocked(store, writer)
    store.error = error
    writer.put("tasks", "b", b"1")
    flush = writer.flush()
    store.go.set()
    assert flush.result(TIMEOUT) is False
    assert store.ended.wait(TIMEOUT)
    writer.put("tasks", "c", b"1")
    writer.delete("tasks", "c")
    assert writer.flush().result(TIMEOUT) is False
    assert writer.lag_seconds == 0.0
    assert writer.close(TIMEOUT) is False
    assert store.end == "abandoned"
    assert len(failures) == 1
    assert isinstance(failures[0], JournalError)
    assert "disk full" in str(failures[0])
    assert "The journal is given up" in caplog.text


def fail(store, writer):
    store.error = JournalError("disk full")
    writer.put("tasks", "a", b"")
    assert store.tries.acquire(timeout=TIMEOUT)


def test_removal_is_tried_until_it_succeeds(store, writer, failures, monkeypatch, caplog):
    monkeypatch.setattr(writer_module, "_AGAIN", 0.01)
    store.removals = [False, False, False, True]
    fail(store, writer)
    assert store.ended.wait(TIMEOUT)
    assert store.end == "abandoned"
    assert len(store.removals) == 1
    assert len(failures) == len(caplog.records) == 1


def test_the_end_tries_once_more_to_remove(store, writer):
    store.removals = [False, True]
    fail(store, writer)
    assert writer.close(TIMEOUT) is False
    assert store.end == "abandoned"


def test_what_cannot_be_removed_is_released_at_the_end(store, writer, caplog):
    store.removals = [False]
    fail(store, writer)
    assert not store.ended.is_set()
    assert writer.close(TIMEOUT) is False
    assert store.end == "closed"
    assert "could not be removed" in caplog.text


def test_the_end_does_not_wait_long_for_the_removal(store, writer, monkeypatch):
    monkeypatch.setattr(writer_module, "_LAST_TRY", 0.01)
    blocked(store, writer)
    store.error = JournalError("disk full")
    monkeypatch.setattr(writer_module, "_MOST_BYTES", 1)
    monkeypatch.setattr(writer_module, "_PATIENCE", 0.01)
    writer.put("tasks", "b", b"22")  # fails, while the thread waits for the disk
    begun = time.monotonic()
    assert writer.close(TIMEOUT) is False
    assert time.monotonic() - begun < TIMEOUT / 2
    assert not store.ended.is_set()


def test_a_callback_that_fails_is_logged(store, caplog):
    store.error = JournalError("disk full")
    writer = JournalWriter(store, lambda cause: 1 / 0)
    writer.put("tasks", "a", b"")
    assert store.ended.wait(TIMEOUT)
    assert "ZeroDivisionError" in caplog.text
    assert writer.close(TIMEOUT) is False


def test_a_disk_that_does_not_answer_ends_the_journal(store, writer, failures, monkeypatch):
    """The event loop waits once where too much is pending, and only so long."""
    monkeypatch.setattr(writer_module, "_MOST_BYTES", 1000)
    monkeypatch.setattr(writer_module, "_PATIENCE", 0.01)
    blocked(store, writer)
    for _ in range(5):
        writer.put("tasks", "a", bytes(600))
    assert len(failures) == 1
    assert "1200 bytes wait to be written" in str(failures[0])
    store.go.set()
    assert store.ended.wait(TIMEOUT)
    assert store.end == "abandoned"


def test_too_much_at_once_waits_for_the_disk(store, writer, failures, monkeypatch):
    monkeypatch.setattr(writer_module, "_MOST_BYTES", 1000)
    for n in range(20):
        writer.put("tasks", str(n), bytes(600))
    assert writer.flush().result(TIMEOUT)
    assert sum(map(len, store.groups)) == 20
    assert failures == []


def test_many_threads(store, writer):
    def put(name):
        for n in range(500):
            writer.put(name, str(n), b"")

    threads = [threading.Thread(target=put, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert writer.flush().result(TIMEOUT)
    records = [record for group in store.groups for record in group]
    for name in "abcd":
        assert [r.key for r in records if r.table == name] == [str(n) for n in range(500)]


def test_a_full_place_fails_the_journal_and_leaves_nothing(directory, failures):
    writer = JournalWriter(open_journal(directory), failures.append)
    writer.put("tasks", "a", b"1")
    assert writer.flush().result(TIMEOUT)
    (directory / "journal.sqlite").rename(directory / "away")
    writer.put("tasks", "b", b"1")
    assert writer.flush().result(TIMEOUT) is False
    writer.close(TIMEOUT)
    assert "No such file" in str(failures[0])
    store = open_journal(directory)
    assert list(store.read("tasks")) == []
    store.close()


# --- against a dict -----------------------------------------------------------------------

names = st.sampled_from(["tasks", "graphs"])
keys = st.sampled_from(["a", "b", "c"]) | st.text(max_size=3)
values = st.binary(max_size=20) | st.sampled_from([bytes(1 << 20), b"x" * ((1 << 20) + 7)])
steps = st.lists(
    st.builds(Record, names, keys, values | st.none()) | st.sampled_from(["flush", "reopen"]),
    max_size=40,
)


@settings(max_examples=settings.default.max_examples // 6)
@given(steps)
def test_writer_and_store_are_a_dict(steps):
    model: dict[str, dict[str, bytes]] = {"tasks": {}, "graphs": {}}
    failures: list[JournalError] = []
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory) / "journal"
        writer = JournalWriter(open_journal(place), failures.append)
        for step in [*steps, "reopen"]:
            if step == "flush":
                assert writer.flush().result(TIMEOUT)
            elif step == "reopen":
                assert writer.close(TIMEOUT)
                store = open_journal(place)
                found = {name: list(store.read(name)) for name in model}
                assert found == {name: list(table.items()) for name, table in model.items()}
                writer = JournalWriter(store, failures.append)
            else:
                apply(model, [step])
                if step.value is not None:
                    writer.put(*step)
                else:
                    writer.delete(*step[:2])
        writer.close(TIMEOUT)
    assert failures == []


# --- kills --------------------------------------------------------------------------------

_CHILD = """
import sys
from dask_marsched.journal.places import open_journal
from dask_marsched.journal.writer import JournalWriter
writer = JournalWriter(open_journal(sys.argv[1]), lambda cause: None)
n = 0
while True:
    # a pair is one group or in the order of its records
    writer.put("a", str(n), b"%d" % n * 20)
    writer.put("b", str(n), b"%d" % n * (2_000_000 if n % 500 == 7 else 20))
    if n >= 200:
        writer.delete("b", str(n - 200))
    if n % 50 == 0:
        assert writer.flush().result(60)
        print(n, flush=True)  # durable
    n += 1
"""


def check_killed(place: str, reported: int) -> None:
    """What is left is what was written up to some record, and all that was said to be durable."""
    store = open_journal(place)
    a, b = dict(store.read("a")), dict(store.read("b"))
    store.close()
    count = len(a)
    assert count > reported
    assert list(a) == [str(n) for n in range(count)]
    assert all(value == b"%d" % n * 20 for n, value in enumerate(a.values()))
    first = int(next(iter(b)))
    assert list(b) == [str(n) for n in range(first, first + len(b))]
    # the group may end between the records of a pair
    assert first + len(b) in (count, count - 1)
    assert first in (max(count - 201, 0), max(count - 200, 0))


def kill(place: str, generator: random.Random) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _CHILD, place], stdout=subprocess.PIPE, text=True
    ) as child:
        reported = -1
        for _ in range(generator.randrange(1, 30)):
            reported = int(child.stdout.readline())
        if generator.random() < 0.8:  # not just after a flush
            threading.Event().wait(generator.random() * 0.05)
        child.kill()
        reported = max([reported, *map(int, child.stdout.read().split())])
    check_killed(place, reported)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(n, marks=pytest.mark.extended) for n in (1, 2))]
)
def test_a_killed_process_leaves_a_prefix(place, seed):
    kill(place, random.Random(seed))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100))
def test_killed_at_a_hundred_moments(directory, seed):
    kill(str(directory), random.Random(1000 + seed))


def test_the_writer_of_a_forked_child_is_the_parents(directory):
    """A child that ends does not touch the parent's journal."""
    code = """
import os, sys
from dask_marsched.journal.places import open_journal
from dask_marsched.journal.store import Record
store = open_journal(sys.argv[1])
store.write([Record("tasks", "a", b"1")])
child = os.fork()
if not child:
    sys.exit()  # with finalizers
assert os.waitpid(child, 0)[1] == 0
store.write([Record("tasks", "b", b"2")])
os.kill(os.getpid(), 9)
"""
    assert subprocess.run([sys.executable, "-c", code, directory]).returncode == -9
    store = open_journal(directory)
    assert list(store.read("tasks")) == [("a", b"1"), ("b", b"2")]
    store.close()
