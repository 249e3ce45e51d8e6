import contextlib
import errno
import gc
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from functools import partial

import numpy as np
import pytest

from dask_marsched.store import file_ranges
from dask_marsched.store.arena import Arena, segment_size
from dask_marsched.store.attachment import Attachments
from dask_marsched.store.charge import Charge, read_charge, write_charge
from dask_marsched.store.frames import from_frames, to_frames
from dask_marsched.store.segment import (
    DATA_OFFSET,
    Handle,
    SegmentAddress,
    create_segment,
    open_segment,
)
from tests.store.arrays import kinds, same
from tests.store.peers import peers, segments

MIB = 1 << 20
X = np.arange(MIB, dtype=float)


@pytest.fixture
def address():
    made = create_segment(segment_size(32 * MIB))
    yield made
    os.close(made.fd)


@pytest.fixture
def arena(address):
    return Arena(address, 32 * MIB)


def read(handle, mapping):
    return from_frames(handle.header, mapping.frames(handle.lengths))


def blocks(fd):
    return 512 * os.fstat(fd).st_blocks


@pytest.mark.parametrize("kind", kinds())
def test_chunks_are_read_as_they_were_put(arena, kind):
    value = kinds()[kind]
    chunk = arena.put(*to_frames(value))
    if chunk is None:
        assert sum(f.nbytes for f in to_frames(value)[1]) == 0
        return
    handle = Handle.from_message(chunk.handle.to_message())
    assert handle == chunk.handle
    assert same(read(handle, Attachments().map(handle)), value)
    assert same(read(handle, chunk.map()), value)


def test_writes_leak_neither_to_the_owner_nor_to_other_peers(arena):
    chunk = arena.put(*to_frames(X))
    views = [
        read(chunk.handle, mapping) for mapping in (chunk.map(), Attachments().map(chunk.handle))
    ]
    for i, view in enumerate(views):
        assert view.flags.writeable
        view[i] = -1
    with peers(()) as (peer,):
        total = peer.do("np.asarray(Attachments().map(h)).view(float).sum()", h=chunk.handle)
    assert total == X.sum()
    assert views[0][1] == X[1]


@pytest.mark.extended
def test_memory_is_recycled_and_not_before_the_last_peer_let_go(arena):
    with peers(()) as (peer,):
        chunk = arena.put(*to_frames(X))
        peer.do(
            "attachments = Attachments(); mine = np.asarray(attachments.map(h)).view(float)",
            h=chunk.handle,
        )
        offset = chunk.handle.offset
        assert peer.do("attachments.mapped, attachments.orphaned") == (X.nbytes, 0)
        del chunk
        gc.collect()
        assert (arena.live, arena.filled) == (0, X.nbytes)
        assert peer.do("attachments.mapped, attachments.orphaned") == (X.nbytes, X.nbytes)
        second = arena.put(*to_frames(-X))
        assert second.handle.offset != offset
        assert peer.do("mine.sum()") == X.sum()
        peer.do("del mine")
        assert peer.do("attachments.mapped") == 0
        third = arena.put(*to_frames(X + 1))
        assert third.handle.offset == offset
        assert arena.recycled == 1
        assert blocks(arena.fd) < 2.1 * X.nbytes


def test_a_peer_that_is_killed_lets_go(arena):
    with peers(()) as (peer,):
        chunk = arena.put(*to_frames(X))
        peer.do("mine = Attachments().map(h)", h=chunk.handle)
        del chunk
        assert arena.trim() == 0
        peer.kill()
        assert arena.trim() == X.nbytes
        assert blocks(arena.fd) < 100_000


def test_one_peer_may_map_a_chunk_twice(arena):
    attachments = Attachments()
    chunk = arena.put(*to_frames(X))
    first, second = attachments.map(chunk.handle), attachments.map(chunk.handle)
    handle = chunk.handle
    del chunk, first
    assert not file_ranges.is_unread(arena.fd, handle.offset, 1)
    del second
    assert file_ranges.is_unread(arena.fd, handle.offset, 1)
    assert attachments.mapped == 0


@pytest.mark.extended
def test_a_segment_that_nothing_is_mapped_from_is_closed_after_a_while(arena):
    attachments = Attachments()
    chunk = arena.put(*to_frames(X))
    before = open_segments()
    mapping = attachments.map(chunk.handle)
    attachments.sweep(0.0)
    attachments.sweep(100.0)
    opened = open_segments()
    assert opened > before
    del mapping
    assert attachments.addresses == X.nbytes
    attachments.sweep(100.0)
    attachments.sweep(101.0)
    mapping = attachments.map(chunk.handle)
    attachments.sweep(103.0)
    assert open_segments() == opened
    del mapping
    attachments.sweep(103.0)
    attachments.sweep(106.0)
    assert open_segments() == before
    assert attachments.addresses == 0


@pytest.mark.extended
def test_retired_attachments_close_unused_segments_at_once(arena):
    attachments = Attachments()
    chunk = arena.put(*to_frames(X))
    before = open_segments()
    mapping = attachments.map(chunk.handle)
    attachments.retire()
    assert open_segments() > before
    del mapping
    assert open_segments() == before


def open_segments():
    gc.collect()
    found = 0
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the listing itself
            found += "dask-marsched" in os.readlink(f"/proc/self/fd/{number}")
    return found


def test_the_cap_holds_and_refusals_change_nothing(arena):
    chunks = [arena.put(*to_frames(X)) for _ in range(4)]
    assert all(chunks)
    assert arena.put(*to_frames(X)) is None
    assert arena.refused == 1
    assert arena.filled == 4 * X.nbytes
    chunks.pop()
    assert arena.put(*to_frames(X[: X.size // 2])) is not None
    assert arena.put(*to_frames(np.zeros(40 * MIB, "u1"))) is None


def test_trim_returns_unused_memory(arena):
    chunk = arena.put(*to_frames(X))
    del chunk
    assert blocks(arena.fd) > X.nbytes
    assert arena.trim() == X.nbytes
    assert blocks(arena.fd) < 100_000
    assert arena.filled == 0


def test_unneeded_memory_is_returned(arena):
    kept, let_go = arena.put(*to_frames(X)), arena.put(*to_frames(X))
    del let_go
    assert arena.trim_unneeded() == 0, "it was used a moment ago"
    assert arena.trim_unneeded() == X.nbytes
    assert X.nbytes < blocks(arena.fd) < X.nbytes + 100_000
    assert arena.filled == arena.live == X.nbytes
    assert (from_frames(kept.handle.header, kept.map().frames(kept.handle.lengths)) == X).all()


def test_memory_is_charged_to_the_process_it_exists_for(arena):
    attachments = Attachments()
    chunk, other = arena.put(*to_frames(X)), arena.put(*to_frames(X))
    mapping = attachments.map(chunk.handle)
    assert (arena.held(), attachments.orphaned) == (2 * X.nbytes, 0)
    del chunk, other
    assert arena.live == 0
    assert (arena.held(), attachments.orphaned) == (X.nbytes, X.nbytes)  # one waits to be recycled
    arena.trim()
    assert (arena.held(), attachments.orphaned) == (0, X.nbytes)
    del mapping
    assert (arena.held(), attachments.orphaned) == (X.nbytes, 0)


def test_memory_of_a_dead_owner_is_charged_to_its_readers():
    attachments = Attachments()
    with peers(()) as (owner,):
        owner.do("cap = 1 << 24; arena = Arena(create_segment(segment_size(cap)), cap)")
        owner.do("chunks = [arena.put(b'', [np.ones(n).data.cast('B')]) for n in (1000, 2000)]")
        handles = owner.do("[chunk.handle for chunk in chunks]")
        mappings = [attachments.map(handle) for handle in handles]
        assert (attachments.mapped, attachments.orphaned) == (24_000, 0)
        owner.kill()
        assert attachments.orphaned == 24_000
        del mappings[0]
        assert attachments.orphaned == 16_000


def test_memory_of_a_dead_owner_is_returned_when_nobody_reads_it():
    attachments, others = Attachments(), Attachments()
    with peers(()) as (owner,):
        owner.do("cap = 1 << 24; arena = Arena(create_segment(segment_size(cap)), cap)")
        owner.do("xs = [np.full(1 << 18, i, float).data.cast('B') for i in range(6)]")
        owner.do("chunks = [arena.put(b'', [x], plain=True) for x in xs]")
        found = owner.do("[(chunk.handle, chunk.stamp) for chunk in chunks]")
        mappings = [attachments.map(handle) for handle, _ in found[:3]]
        theirs = others.map(found[3][0])
        owner.do("del chunks[1]")  # released, but still read
        (attachment,) = attachments._open.values()
        now = time.monotonic()
        for _ in range(3):
            now += 60
            attachments.sweep(now)  # nothing is returned while the owner lives
        owner.kill()
    before = os.fstat(attachment.fd).st_blocks * 512
    attachments.sweep(now + 20)
    assert os.fstat(attachment.fd).st_blocks * 512 == before, "they may be adopted yet"
    adopted = others.map_stamped(*found[4])
    del mappings[0]
    attachments.sweep(now + 40)
    assert before - os.fstat(attachment.fd).st_blocks * 512 == 2 * MIB  # the last one
    for attach in (attachments.map, partial(attachments.map_stamped, stamp=found[5][1])):
        with pytest.raises(OSError, match="gone"):
            attach(found[5][0])
    attachments.sweep(now + 60)
    assert before - os.fstat(attachment.fd).st_blocks * 512 == 4 * MIB  # and the first
    for i, mapping in zip((1, 2, 3, 4), (*mappings, theirs, adopted), strict=True):
        assert (np.asarray(mapping).view(float) == i).all()


def test_many_threads(arena):
    failed = []

    def work(seed):
        rng = np.random.default_rng(seed)
        attachments = Attachments()
        for _ in range(30):
            values = rng.random(rng.integers(1000, 200_000))
            chunk = arena.put(*to_frames(values))
            got = read(chunk.handle, attachments.map(chunk.handle))
            del chunk
            if not (got == values).all():
                failed.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert arena.live == 0


def test_a_closed_arena_publishes_no_more(arena):
    chunk = arena.put(*to_frames(X))
    arena.close()
    assert arena.put(*to_frames(X)) is None
    assert (read(chunk.handle, chunk.map()) == X).all()


def test_a_closed_arena_returns_each_chunk_when_it_ends(arena):
    chunks = [arena.put(*to_frames(X)) for _ in range(3)]
    mapping = Attachments().map(chunks[2].handle)
    chunks.pop(0)
    arena.close()
    assert arena.filled == 2 * X.nbytes
    chunks.pop()
    assert arena.filled == 2 * X.nbytes, "a peer reads it"
    del mapping
    chunks.pop()
    assert arena.filled == 0
    assert blocks(arena.fd) < 200_000


# --- the segment --------------------------------------------------------------------------


def test_a_segment_is_its_users_only(address):
    assert stat.S_IMODE(os.fstat(address.fd).st_mode) == 0o600


def test_a_segment_cannot_be_cut_off(address):
    with pytest.raises(PermissionError):
        os.ftruncate(address.fd, 4096)


def test_another_segment_in_its_place_is_noticed(address):
    other = address._replace(identity=b"0123456789abcdef")
    with pytest.raises(OSError, match="no longer it"):
        open_segment(other)


def test_something_else_in_its_place_is_noticed(tmp_path):
    with open(tmp_path / "file", "w+b") as file, pytest.raises(OSError, match="no longer it"):
        open_segment(SegmentAddress(os.getpid(), file.fileno(), b"0" * 16))
    read, write = os.pipe()
    with pytest.raises(OSError, match="Illegal seek"):
        open_segment(SegmentAddress(os.getpid(), read, b"0" * 16))
    os.close(read)
    os.close(write)


def test_a_process_that_ended_has_no_segment():
    with peers(()) as (peer,):
        address = peer.do("create_segment(segment_size(1 << 20))")
        os.close(open_segment(address))
        peer.kill()
    with pytest.raises(OSError, match="No such file"):
        open_segment(address)


def test_charges(address):
    assert read_charge(address.fd) == Charge(0, 0, 0)
    write_charge(address.fd, Charge(3, 5, 1 << 40))
    assert read_charge(address.fd) == Charge(3, 5, 1 << 40)


def test_released_memory_is_not_charged_before_the_worker_says_so(address):
    os.pwrite(address.fd, bytes(1 << 20), DATA_OFFSET)
    write_charge(address.fd, Charge(1 << 20, 5, 0))
    assert read_charge(address.fd) == Charge(1 << 20, 5, 0)
    file_ranges.punch(address.fd, DATA_OFFSET, 1 << 20)
    assert read_charge(address.fd).held < 1 << 16


def test_nothing_is_left_when_all_are_killed():
    with peers((), (), ()) as (nanny, owner, reader):
        address = nanny.do("create_segment(segment_size(1 << 25))")
        owner.do("arena = Arena(address, 1 << 25)", address=address)
        owner.do("chunk = arena.put(b'', [np.ones(1 << 20).view('u1').data])")
        handle = owner.do("chunk.handle")
        reader.do("mine = Attachments().map(handle)", handle=handle)
        (segment,) = segments([nanny.pid])
        assert segments([owner.pid]) == segments([reader.pid]) == {segment}
        for peer in (nanny, owner):
            os.kill(peer.pid, signal.SIGKILL)
            peer.process.wait()
        # what a peer has mapped stays as it was
        assert reader.do("np.asarray(mine).view(float).sum()") == 1 << 20
        reader.kill()
    assert segment not in segments()


# --- where there is no memory, or no way --------------------------------------------------

IN_A_SMALL_FILE_SYSTEM = """
import os, subprocess, sys
import numpy as np
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", sys.argv[1]], check=True)
from dask_marsched.store import segment
segment.fcntl.fcntl = lambda *args: 0  # no seals there
os.memfd_create = lambda name, flags: os.open(sys.argv[1] + "/x", os.O_CREAT | os.O_RDWR)
from dask_marsched.store.arena import Arena, segment_size
from dask_marsched.store.frames import to_frames
arena = Arena(segment.create_segment(segment_size(1 << 26)), 1 << 26)
kept = arena.put(*to_frames(np.ones(200_000)))
assert arena.put(*to_frames(np.ones(1 << 20))) is None
assert arena.refused == 1
again = arena.put(*to_frames(np.full(200_000, 2.0)))
for chunk, n in ((kept, 200_000), (again, 400_000)):
    assert np.asarray(chunk.map()).view(float).sum() == n
print("fine")
"""

can_unshare = shutil.which("unshare") is not None and (
    subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "true"],
        capture_output=True,
        check=False,
    ).returncode
    == 0
)
needs_unshare = pytest.mark.skipif(not can_unshare, reason="no namespaces may be made here")


@needs_unshare
def test_a_full_file_system_is_a_refusal_not_a_signal(tmp_path):
    done = subprocess.run(
        [
            *("unshare", "--user", "--map-root-user", "--mount"),
            *(sys.executable, "-c", IN_A_SMALL_FILE_SYSTEM, str(tmp_path)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr


@needs_unshare
def test_another_namespace_cannot_map(arena):
    chunk = arena.put(*to_frames(X))
    with peers(("unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc")) as (
        peer,
    ):
        answer = peer.do("Attachments().map(handle)", handle=chunk.handle)
    assert isinstance(answer, OSError)


def test_a_failed_mapping_leaves_no_lock(arena, monkeypatch):
    chunk = arena.put(*to_frames(X))
    attachments = Attachments()

    def refuse(*args, **kwargs):
        raise OSError(errno.ENOMEM, "no more mappings")

    with monkeypatch.context() as patched:
        patched.setattr("dask_marsched.store.mapping._map", refuse)
        with pytest.raises(OSError, match="no more mappings"):
            attachments.map(chunk.handle)
    gc.collect()
    handle = chunk.handle
    assert file_ranges.is_unread(arena.fd, handle.offset, 1)
    assert attachments.mapped == 0


@pytest.mark.extended
def test_chunks_of_ever_other_sizes_fit_once_all_others_are_released(arena):
    sizes = [MIB, 3 * MIB // 2, 2 * MIB, 3 * MIB, 4 * MIB, 6 * MIB, 8 * MIB, 12 * MIB, 16 * MIB]
    for nbytes in (*sizes, *reversed(sizes)):
        value = np.arange(nbytes // 8, dtype=float)
        held = []
        while len(held) < 16 * MIB // nbytes:
            chunk = arena.put(*to_frames(value))
            assert chunk is not None
            held.append(chunk)
        assert all(same(read(c.handle, Attachments().map(c.handle)), value) for c in held)
        del held, chunk
        gc.collect()
    assert arena.held() <= 32 * MIB
    assert blocks(arena.fd) <= 34 * MIB
