"""Files of the cache are written whole, locked, pruned, and kept from other users."""

import os
import threading
import time

from dask_marsched.kernels import cache_files


def test_one_writer_holds_the_lock_while_others_wait(tmp_path):
    path, made, both = tmp_path / "code.o", [], threading.Barrier(2)

    def make():
        both.wait()
        with cache_files.claimed(path):
            if cache_files.read(path) is None:
                made.append(threading.get_ident())
                cache_files.write(path, b"machine code")

    threads = [threading.Thread(target=make) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1


def test_a_damaged_file_is_not_read(tmp_path):
    path = tmp_path / "code.o"
    assert cache_files.read(path) is None
    cache_files.write(path, b"machine code")
    assert cache_files.read(path) == b"machine code"
    path.write_bytes(path.read_bytes()[:-1])
    assert cache_files.read(path) is None


def test_concurrent_writers_leave_a_whole_file(tmp_path):
    path, contents = tmp_path / "code.o", [bytes([n]) * 100_000 for n in range(8)]
    threads = [threading.Thread(target=cache_files.write, args=(path, c)) for c in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cache_files.read(path) in contents
    assert list(tmp_path.iterdir()) == [path]


def test_unused_files_are_deleted(tmp_path):
    now, day = time.time(), 86400.0

    def made(name, age, size=10):
        (tmp_path / name).write_bytes(b"x" * size)
        os.utime(tmp_path / name, (now - age, now - age))

    old, new = 31 * day, 29 * day
    for name, age in (("a" * 40, old), ("b" * 40, new)):
        for suffix in ("o", "json", "lock"):
            made(f"{name}.{suffix}", age)
    made("tmpk2x_9.tmp", old)
    made("tmpk3x_9.tmp", new)
    made("notes.txt", old)
    made("c" * 39 + ".o", old)
    wanted = {*(f"{'b' * 40}.{s}" for s in ("o", "json", "lock")), "tmpk3x_9.tmp"}
    others = {"notes.txt", "c" * 39 + ".o", "pruned"}
    cache_files.prune(tmp_path, now)
    assert {path.name for path in tmp_path.iterdir()} == wanted | others
    # once a day is enough
    made("a" * 40 + ".o", old)
    cache_files.prune(tmp_path, now + day - 1)
    assert (tmp_path / ("a" * 40 + ".o")).exists()
    cache_files.prune(tmp_path, now + day)
    assert not (tmp_path / ("a" * 40 + ".o")).exists()


def test_the_latest_used_files_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(cache_files, "MOST_BYTES", 2 * 10_032)
    now, paths = time.time(), [tmp_path / f"{digit * 40}.o" for digit in "abc"]
    for age, path in enumerate(reversed(paths)):
        cache_files.write(path, b"x" * 10_000)
        os.utime(path, (now - 60 * age - 60, now - 60 * age - 60))
    assert cache_files.read(paths[0]) is not None  # the eldest, which is used
    cache_files.prune(tmp_path)
    assert [path.exists() for path in paths] == [True, False, True]


def test_a_directory_that_others_may_write_to_is_refused(tmp_path):
    assert cache_files.private(tmp_path / "own") == tmp_path / "own"
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    assert cache_files.private(shared) is None
    assert cache_files.private(tmp_path / "own" / "missing" / "deep") is not None
