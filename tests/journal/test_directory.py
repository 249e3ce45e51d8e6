"""Directories that are refused, and damage to a journal's files."""

import errno
import itertools
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dask_marsched.journal import versions as versions_module
from dask_marsched.journal.places import open_journal
from dask_marsched.journal.sqlite_store import SQLiteStore
from dask_marsched.journal.store import JournalError, Record

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
not_root = pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")


def written(directory: Path, groups: int = 5) -> None:
    store = SQLiteStore(directory)
    for n in range(groups):
        store.write([Record("tasks", f"{n} {i}", b"%d" % n * 50) for i in range(20)])
    store.close()


def test_a_new_directory_is_for_its_owner_only(directory):
    previous = os.umask(0)
    try:
        written(directory)
    finally:
        os.umask(previous)
    modes = {path.name: path.stat().st_mode & 0o777 for path in directory.iterdir()}
    assert directory.stat().st_mode & 0o777 == 0o700
    assert modes["journal.sqlite"] == 0o600


@pytest.mark.parametrize("mode", [0o750, 0o704, 0o720, 0o711])
def test_what_others_may_use_is_refused(directory, mode):
    directory.mkdir()
    directory.chmod(mode)
    with pytest.raises(JournalError, match=rf"marsched.journal.directory: .*mode {mode:o}.*chmod"):
        open_journal(directory)
    assert list(directory.iterdir()) == []


def test_a_file_that_others_may_read_is_refused(directory):
    written(directory)
    (directory / "journal.sqlite").chmod(0o644)
    with pytest.raises(JournalError, match=r"journal.sqlite is open to group or others \(mode 644"):
        open_journal(directory)


@as_root
def test_what_belongs_to_another_user_is_refused(directory):
    directory.mkdir(mode=0o700)
    os.chown(directory, 12345, 12345)
    with pytest.raises(JournalError, match=r"belongs to user 12345, this is user 0; "):
        open_journal(directory)
    os.chown(directory, 0, 0)
    written(directory)
    os.chown(directory / "journal.sqlite", 12345, 12345)
    with pytest.raises(JournalError, match=r"journal.sqlite belongs to user 12345"):
        open_journal(directory)


def test_a_file_is_no_directory(tmp_path):
    file = tmp_path / "file"
    file.touch()
    for path in (file, file / "below"):
        with pytest.raises(JournalError, match=r"marsched.journal.directory: .* is not a dir"):
            open_journal(path)


def test_what_cannot_be_made_is_refused():
    with pytest.raises(JournalError, match=r"/proc/journal cannot be made .*; name a directory"):
        open_journal("/proc/journal")


@not_root
def test_what_is_not_writable_is_refused(directory):
    directory.mkdir(mode=0o500)
    with pytest.raises(JournalError, match=r"marsched.journal.directory: .* is not writable"):
        open_journal(directory)


@as_root
def test_a_file_system_that_is_read_only_is_refused(directory):
    directory.mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro,mode=700", "tmpfs", directory], check=True)
    try:
        with pytest.raises(JournalError, match=r"marsched.journal.directory: .* is not writable"):
            open_journal(directory)
    finally:
        subprocess.run(["umount", directory], check=True)


@pytest.mark.parametrize("place", ["s3://bucket/journal", "mysql://host"])
def test_an_unknown_place_is_refused(place):
    with pytest.raises(JournalError, match=r"marsched.journal.directory: .*; name a directory, or"):
        open_journal(place)


def test_a_file_url_is_a_directory(directory):
    open_journal(f"file://{directory}").close()
    assert (directory / "journal.sqlite").exists()


@pytest.mark.parametrize("name", ["format", "dask", "distributed", "python"])
def test_each_version_is_checked(directory, monkeypatch, name):
    current = versions_module.current_versions()
    written(directory)
    monkeypatch.setattr(versions_module, "current_versions", lambda: {**current, name: "0"})
    message = rf"was written with {name} {current[name]}, this is {name} 0\. Start the"
    with pytest.raises(JournalError, match=message):
        open_journal(directory)


def test_another_database_is_refused(directory):
    import sqlite3

    directory.mkdir(mode=0o700)
    path = directory / "journal.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE other (n INTEGER)")
    connection.close()
    path.chmod(0o600)
    with pytest.raises(JournalError, match=r"journal.sqlite is not a journal"):
        open_journal(directory)


# --- the lock -----------------------------------------------------------------------------

_HOLDER = """
import os, sys
from dask_marsched.journal.places import open_journal
from dask_marsched.journal.store import Record
store = open_journal(sys.argv[1])
store.write([Record("tasks", "a", b"1")])
if os.fork() == 0:
    sys.stdin.read()  # a child of the scheduler outlives it
    os._exit(0)
print("open", flush=True)
os.wait()
"""


def test_a_killed_holder_and_its_children_leave_no_lock(directory):
    with subprocess.Popen(
        [sys.executable, "-c", _HOLDER, directory], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout.readline() == b"open\n"
        with pytest.raises(JournalError, match=rf"scheduler \(process {holder.pid} on"):
            SQLiteStore(directory, patience=0.01)
        holder.kill()
        holder.wait()
        store = open_journal(directory)  # while the child is alive
        assert list(store.read("tasks")) == [("a", b"1")]
        store.close()


# --- damage -------------------------------------------------------------------------------


def test_a_torn_log_is_read_up_to_its_last_whole_group(directory, tmp_path):
    """Whatever is missing at the end of the log, what is read is a prefix of whole groups."""
    store = SQLiteStore(directory)
    states: list[list[tuple[str, bytes]]] = [[]]
    model: dict[str, bytes] = {}
    generator = random.Random(0)
    for n in range(8):
        batch = [Record("tasks", str(generator.randrange(30)), b"%d" % n * 40) for _ in range(10)]
        batch += [
            Record("tasks", key, None) for key in generator.sample(sorted(model), len(model) // 3)
        ]
        for record in batch:
            if record.value is not None:
                model[record.key] = record.value
            else:
                model.pop(record.key, None)
        store.write(batch)
        states.append(list(model.items()))
    torn = tmp_path / "torn"
    log = (directory / "journal.sqlite-wal").read_bytes()
    seen = set()
    for length in [*range(0, len(log), 1511), len(log)]:
        shutil.copytree(directory, torn)
        os.truncate(torn / "journal.sqlite-wal", length)
        again = SQLiteStore(torn)
        seen.add(states.index(list(again.read("tasks"))))
        again.close()
        shutil.rmtree(torn)
    assert seen == set(range(9))
    store.close()


def test_damage_is_found(directory, tmp_path):
    """Wherever bytes of the database change, reading raises or returns what was written."""
    written(directory, groups=40)
    expected = read(directory)
    content = (directory / "journal.sqlite").read_bytes()
    damaged = tmp_path / "damaged"
    found = 0
    for offset in range(0, len(content), 2053):
        shutil.copytree(directory, damaged)
        changed = bytes(byte ^ 0x55 for byte in content[offset : offset + 16])
        with open(damaged / "journal.sqlite", "r+b") as file:
            file.seek(offset)
            file.write(changed)
        result = outcome(damaged)
        assert result in (expected, JournalError)
        found += result is JournalError
        shutil.rmtree(damaged)
    assert found > 10


def outcome(directory):
    try:
        return read(directory)
    except JournalError:
        return JournalError


def read(directory):
    store = SQLiteStore(directory)
    try:
        return list(store.read("tasks"))
    finally:
        store.close()


@pytest.mark.parametrize("length", [1, 511, 4096, 4096 * 3 + 5])
def test_a_cut_database_is_refused(directory, length):
    written(directory)
    os.truncate(directory / "journal.sqlite", length)
    with pytest.raises(JournalError, match=r"journal.sqlite is damaged .*Move .* away"):
        read(directory)


# --- while it is written ------------------------------------------------------------------


@pytest.mark.parametrize("remove", [shutil.rmtree, lambda path: path.rename(f"{path}-moved")])
def test_a_removed_directory_is_noticed(directory, remove):
    store = SQLiteStore(directory)
    store.write([Record("tasks", "a", b"1")])
    remove(directory)
    with pytest.raises(JournalError, match=r"cannot be used: .*No such file"):
        store.write([Record("tasks", "b", b"1")])
    other = SQLiteStore(directory)
    other.write([Record("tasks", "c", b"1")])
    with pytest.raises(JournalError, match="it was replaced"):
        store.write([Record("tasks", "b", b"1")])
    assert store.abandon()  # which leaves the other's alone
    other.close()
    assert read(directory) == [("c", b"1")]
    assert store.abandon()  # its files' numbers may be the other's by now
    assert read(directory) == [("c", b"1")]


@pytest.mark.parametrize("first", ["journal.sqlite", "journal.sqlite-wal"])
def test_what_cannot_be_removed_yet_is_kept_from_others(directory, monkeypatch, first):
    store = SQLiteStore(directory)
    store.write([Record("tasks", "a", b"1")])
    unlink = Path.unlink

    def refuse(path, missing_ok=False):
        if path.name == first:
            raise OSError(errno.EROFS, "Read-only file system")
        unlink(path)

    monkeypatch.setattr(Path, "unlink", refuse)
    assert not store.abandon()
    assert not store.abandon()
    if first == "journal.sqlite":
        with pytest.raises(JournalError, match="in use by another"):
            SQLiteStore(directory, patience=0.01)
    monkeypatch.undo()
    assert store.abandon()
    assert {path.name for path in directory.iterdir()} == {"holder"}
    assert read(directory) == []


def fill(store):
    for n in itertools.count():
        store.write([Record("tasks", f"{n} {i}", bytes(100)) for i in range(100)])


@as_root
def test_a_full_disk_leaves_whole_groups(directory):
    directory.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "tmpfs", directory], check=True
    )
    try:
        store = SQLiteStore(directory)
        with pytest.raises(JournalError, match=r"journal.sqlite cannot be used: .*full"):
            fill(store)
        groups = len(list(store.read("tasks"))) // 100
        assert groups
        expected = [(f"{n} {i}", bytes(100)) for n in range(groups) for i in range(100)]
        assert list(store.read("tasks")) == expected
        store.close()
        assert read(directory) == expected
        store = SQLiteStore(directory)
        store.abandon()
        assert os.statvfs(directory).f_bavail * 4096 > 1_000_000  # all but the note of the holder
    finally:
        subprocess.run(["umount", directory], check=True)


def size(directory):
    return sum(path.stat().st_size for path in directory.iterdir())


def test_space_of_what_is_deleted_is_given_back(directory):
    store = SQLiteStore(directory)
    store.write(
        [Record("graphs", "g", random.Random(0).randbytes(32 << 20)), Record("tasks", "a", b"")]
    )
    assert size(directory) > 32 << 20
    store.write([Record("graphs", "g", None)])
    rounds = 0
    while store.tidy():
        rounds += 1
    assert 8 < rounds < 40  # each is bounded
    assert size(directory) < 5 << 20
    store.close()
    assert read(directory) == [("a", b"")]
