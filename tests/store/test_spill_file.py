import errno
import gc
import os
import resource

import numpy as np
import pytest
from sortedcontainers import SortedKeyList

from dask_marsched.store import extents, mapping, spill_file
from dask_marsched.store.frames import from_frames, to_frames
from dask_marsched.store.spill_file import SpillFile, SpillFileFull, is_remote
from tests.store.arrays import kinds, same, spill

X = np.arange(1 << 18, dtype=float)


@pytest.fixture
def file(tmp_path):
    return SpillFile(str(tmp_path / "spilled"))


def blocks(file):
    return 512 * os.fstat(file.fd).st_blocks


@pytest.mark.parametrize("kind", kinds())
def test_frames_are_read_as_they_were_written(file, kind):
    value = kinds()[kind]
    header, frames = to_frames(value)
    spilled = spill(file, frames)
    first, _ = spilled.read()
    again, _ = spilled.read()
    assert same(from_frames(header, first), value)
    assert same(from_frames(header, again), value)


@pytest.mark.parametrize("lengths", [(10, 0), (10, 0, 0), (0, 10, 0), (0, 0), (100_000, 0)])
def test_empty_frames_at_the_end_are_read_back(file, lengths):
    # As of a data frame without rows. Nothing is written for them, so that the file ends before.
    frames = [memoryview(b"x" * n) for n in lengths]
    read, _ = spill(file, frames).read()
    assert read == frames


def test_the_spill_file_has_no_name(file, tmp_path):
    spill(file, [X.view("u1").data])
    assert list((tmp_path / "spilled").iterdir()) == []


def test_nothing_is_open_before_something_is_spilled(tmp_path):
    before = os.listdir("/proc/self/fd")
    file = SpillFile(str(tmp_path))
    assert os.listdir("/proc/self/fd") == before
    spilled = spill(file, [X.view("u1").data])
    (frame,), _ = spilled.read()
    assert (np.frombuffer(frame) == X).all()


def test_what_is_being_written_counts_against_the_bound(tmp_path):
    file = SpillFile(str(tmp_path), most=X.nbytes)

    def frames():
        with pytest.raises(SpillFileFull):
            spill(file, [memoryview(b"1")])
        yield [X.view("u1").data]

    spilled = file.write((X.nbytes,), frames())
    del spilled
    assert file.live == 0
    spill(file, [X.view("u1").data])


def test_the_spill_file_is_unlinked_if_it_cannot_be_unnamed(tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise OSError(errno.EOPNOTSUPP, "not here")

    monkeypatch.setattr(os, "O_TMPFILE", 1 << 30)
    with monkeypatch.context() as patched:
        real = os.open
        patched.setattr(os, "open", lambda p, f, *a: refuse() if f & 1 << 30 else real(p, f, *a))
        file = SpillFile(str(tmp_path))
    spilled = spill(file, [X.view("u1").data])
    (frame,), _ = spilled.read()
    assert (np.frombuffer(frame) == X).all()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.extended
def test_space_is_given_back_with_the_last_reader(file):
    spilled = spill(file, [X.view("u1").data])
    (frame,), mapping = spilled.read()
    assert mapping is not None
    del spilled, mapping
    gc.collect()
    assert file.live == X.nbytes
    assert (np.frombuffer(frame) == X).all()
    del frame
    gc.collect()
    assert (file.live, blocks(file)) == (0, 0)


def test_the_cost_of_a_release_does_not_grow(tmp_path, monkeypatch):
    looked_at = []

    class Watched(SortedKeyList):
        def __iter__(self):
            for extent in super().__iter__():
                looked_at.append(extent)
                yield extent

    monkeypatch.setattr(extents, "SortedKeyList", Watched)
    file = SpillFile(str(tmp_path))
    spilled = [spill(file, [memoryview(b"x" * 1000)]) for _ in range(100)]
    while spilled:
        spilled.pop()
    assert (file.live, blocks(file)) == (0, 0)
    assert len(looked_at) <= 100


def test_readers_write_for_themselves_only(file):
    spilled = spill(file, [X.view("u1").data])
    (first,), mapping = spilled.read()
    np.frombuffer(first)[:] = 0
    assert mapping.modified()
    (second,), other = spilled.read()
    assert (np.frombuffer(second) == X).all()
    assert not other.modified()


def test_small_frames_are_not_mapped(file):
    spilled = spill(file, [memoryview(b"abc"), memoryview(b""), memoryview(b"d" * 100)])
    frames, mapped = spilled.read()
    assert [bytes(f) for f in frames] == [b"abc", b"", b"d" * 100]
    assert not any(f.readonly for f in frames[::2])
    assert mapped is None


def test_what_cannot_be_mapped_is_copied(file, monkeypatch):
    spilled = spill(file, [X.view("u1").data, memoryview(b"abc")])

    def refuse(*args):
        raise OSError(errno.ENOMEM, "too many mappings")

    monkeypatch.setattr(mapping, "_map", refuse)
    frames, mapped = spilled.read()
    assert mapped is None
    assert (np.frombuffer(frames[0]) == X).all()
    assert bytes(frames[1]) == b"abc"
    assert not frames[0].readonly


MOUNTS = """\
22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
30 22 0:40 / /home rw,relatime shared:2 master:1 - nfs4 server:/home rw,vers=4.2
31 30 254:2 / /home/me/fast rw - xfs /dev/vdb rw
32 22 0:41 / /mnt/my\\040disk rw - fuse.sshfs me@server: rw
33 22 0:42 / /over rw - nfs server:/over rw
34 22 0:43 / /over rw - tmpfs tmpfs rw
"""


@pytest.mark.parametrize(
    ("path", "remote"),
    [
        ("/tmp/spill", False),
        ("/home", True),
        ("/home/me/spill", True),
        ("/home/me/fast/spill", False),
        ("/home/me/faster", True),
        ("/homes/me", False),
        ("/mnt/my disk/spill", True),
        ("/over/spill", False),
    ],
)
def test_a_network_file_system_is_that_of_the_innermost_mount(path, remote):
    assert is_remote(path, MOUNTS) is remote
    assert not is_remote(path, "")


def test_on_a_network_file_system_a_full_disk_is_noticed_at_once(tmp_path, monkeypatch):
    def refuse(fd):
        raise OSError(errno.ENOSPC, "the server says so")

    monkeypatch.setattr(os, "fdatasync", refuse)
    spill(SpillFile(str(tmp_path)), [X.view("u1").data])  # not here
    monkeypatch.setattr(spill_file, "is_remote", lambda path, mounts: True)
    file = SpillFile(str(tmp_path))
    with pytest.raises(OSError, match="the server says so"):
        spill(file, [X.view("u1").data])
    gc.collect()
    assert file.live == 0


def test_a_full_disk_leaves_nothing_behind(file):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    kept = spill(file, [X.view("u1").data])
    # Python ignores the signal that comes with it
    resource.setrlimit(resource.RLIMIT_FSIZE, (X.nbytes + X.nbytes // 2, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            spill(file, [X.view("u1").data])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    gc.collect()
    assert file.live == X.nbytes
    (frame,), _ = kept.read()
    assert (np.frombuffer(frame) == X).all()
