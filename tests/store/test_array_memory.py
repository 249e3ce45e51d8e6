"""Arrays that are made in shared memory, so that nothing is copied when they are published."""

import contextvars
import ctypes
import gc
import mmap
import os
import shutil
import threading
import time

import numpy as np
import pytest

from dask_marsched.store import array_memory
from dask_marsched.store.arena import Arena, segment_size
from dask_marsched.store.attachment import Attachments
from dask_marsched.store.frames import from_frames, to_frames
from dask_marsched.store.segment import create_segment
from tests.store.forks import Child
from tests.store.peers import peers, segments

MIB = 1 << 20
N = MIB // 8

COMPILER = shutil.which("cc") or shutil.which("gcc")
pytestmark = pytest.mark.skipif(
    not (COMPILER or array_memory.native), reason="there was no compiler"
)


def test_the_extension_is_compiled_if_there_is_a_compiler():
    assert array_memory.native


@pytest.fixture
def arena():
    array_memory.sizes_wanted()
    address = create_segment(segment_size(32 * MIB))
    made = Arena(address, 32 * MIB)
    yield made
    made.close()
    os.close(address.fd)
    array_memory.sizes_wanted()


def here(function, *args):
    """Call a function whose arrays are made in what was granted."""

    def call():
        array_memory.make_arrays_here()
        return function(*args)

    return contextvars.copy_context().run(call)


def numbers(n=N):
    return np.arange(n, dtype=float)


def read(handle, mapping):
    return from_frames(handle.header, mapping.frames(handle.lengths))


def is_here(arena, array):
    return arena.is_allocated_here(array.ctypes.data, array.nbytes)


def blocks(fd):
    return 512 * os.fstat(fd).st_blocks


def put(arena, array):
    return arena.put(*to_frames(array), plain=True)


def test_nothing_is_copied(arena):
    arena.grant([MIB])
    x = here(numbers)
    assert is_here(arena, x)
    chunk = put(arena, x)
    assert (arena.made_here, arena.published) == (1, 1)
    view = read(chunk.handle, chunk.map())
    assert np.array_equal(view, numbers())
    view[0] = -1
    assert x[0] == 0
    with peers(()) as (peer,):
        total = peer.do("np.asarray(Attachments().map(h)).view(float).sum()", h=chunk.handle)
    assert total == numbers().sum()


def test_writes_after_publishing_stay_private(arena):
    arena.grant([MIB])
    x = here(numbers)
    view, raw = x[::2], memoryview(x).cast("B")
    attachments = Attachments()
    with peers(()) as (peer,):
        chunk = put(arena, x)
        assert not chunk.modified()
        peer.do("before = np.asarray(Attachments().map(h)).view(float)", h=chunk.handle)
        peer.do("before.sum()")
        view[1:] = -1
        raw[8:16] = b"12345678"
        ctypes.memset(x.ctypes.data + x.nbytes - 8, 1, 8)
        assert chunk.modified()
        after = read(chunk.handle, attachments.map(chunk.handle))
        assert np.array_equal(after, numbers())
        assert peer.do("before.sum()") == numbers().sum()
        assert x[2] == -1, "its own writes are there"
        assert arena.made_here == 1
        other = put(arena, x)  # published again, as it is now
        assert np.array_equal(read(other.handle, attachments.map(other.handle)), x)


def test_concurrent_writers_do_not_change_published_chunks(arena):
    n = 16 * N
    address = create_segment(segment_size(256 * MIB))
    large = Arena(address, 256 * MIB)
    ends = threading.Event()

    def write(x):
        while not ends.is_set():
            x[:: N // 8] += 1

    for _ in range(5):
        large.grant([8 * n])
        ends.clear()
        x = here(np.full, n, 0.0)
        writers = [threading.Thread(target=write, args=(x,)) for _ in range(2)]
        for writer in writers:
            writer.start()
        chunk = put(large, x)
        shown = read(chunk.handle, Attachments().map(chunk.handle))
        first = shown.sum()
        deadline = time.monotonic() + 30
        while not chunk.modified() and time.monotonic() < deadline:
            pass
        ends.set()
        for writer in writers:
            writer.join()
        assert shown.sum() == first
        assert x.sum() > first
        del x, shown, chunk, writers, writer
    assert large.made_here == 5
    large.close()
    os.close(address.fd)


def test_an_extent_written_to_after_publishing_is_shared_again(arena):
    places = set()
    for i in range(8):
        arena.grant([MIB])
        x = here(np.full, N, float(i))
        chunk = put(arena, x)
        places.add(chunk.handle.offset)
        x += 100 * (i % 2)  # of every other one there are private pages
        shown = read(chunk.handle, Attachments().map(chunk.handle))
        assert (shown == i).all()
        del x, chunk, shown
    assert arena.made_here == 8
    assert len(places) < 8


def test_arrays_are_copied_if_mappings_cannot_be_exchanged(arena):
    arena._memory.copy, copy = 0, arena._memory.copy
    arena.grant([MIB])
    x = here(numbers)
    chunk = put(arena, x)
    assert chunk is not None
    assert arena.made_here == 0
    del chunk
    assert arena.filled == MIB
    arena.grant([MIB // 2])
    assert arena.filled == MIB, "free memory was emptied for a grant that fails"
    arena._memory.copy = copy


def test_missed_sizes_are_reported_once_and_then_granted(arena):
    x = here(numbers)
    assert not is_here(arena, x)
    assert np.array_equal(x, numbers())
    assert array_memory.sizes_wanted() == [MIB]
    assert array_memory.sizes_wanted() == []
    assert put(arena, x) is not None
    assert arena.made_here == 0
    arena.grant([MIB])
    x = here(numbers)
    assert put(arena, x) is not None
    assert arena.made_here == 1
    assert array_memory.sizes_wanted() == [MIB]  # the one that is to be there next


def test_small_arrays_and_other_contexts_are_left_alone(arena):
    arena.grant([MIB])
    assert not is_here(arena, numbers())
    small = here(numbers, array_memory.LEAST_NBYTES // 8 - 1)
    assert not is_here(arena, small)
    assert array_memory.sizes_wanted() == []


def test_temporaries_use_one_extent_after_the_other(arena):
    arena.grant([MIB, MIB, MIB])

    def chain():
        x = np.full(N, 2.0)
        for _ in range(10):
            x = x + 1  # two at a time
        return x

    x = here(chain)
    assert is_here(arena, x)
    assert x.sum() == 12 * N
    assert arena.filled == 2 * MIB
    assert array_memory.sizes_wanted() == []


def test_of_temporaries_that_take_the_last_extent_again_and_again_one_more_is_wanted(arena):
    arena.grant([MIB])
    for _ in range(10):
        assert is_here(arena, here(numbers))
    assert array_memory.sizes_wanted() == [MIB]


@pytest.mark.parametrize("first", ["chunk", "array"])
def test_an_extent_is_used_again_when_neither_chunk_nor_array_is_there(arena, first):
    arena.grant([MIB])
    held = {"array": here(numbers)}
    held["chunk"] = put(arena, held["array"])
    offset = held["chunk"].handle.offset
    del held[first]
    other = put(arena, numbers())
    assert other.handle.offset != offset
    held.clear()
    assert put(arena, numbers()).handle.offset == offset


def test_peers_keep_what_they_read(arena):
    arena.grant([MIB])
    x = here(numbers)
    chunk = put(arena, x)
    mapping = Attachments().map(chunk.handle)
    seen = read(chunk.handle, mapping)
    del x, chunk
    arena.grant([MIB])
    here(np.full, N, -1.0)
    assert np.array_equal(seen, numbers())


def test_a_part_of_a_large_array_is_copied(arena):
    arena.grant([4 * MIB])
    x = here(numbers, 4 * N)
    assert is_here(arena, x)
    assert not is_here(arena, x[:N])
    chunk = put(arena, x[:N])
    assert arena.made_here == 0
    assert np.array_equal(read(chunk.handle, chunk.map()), numbers())


def test_the_same_array_twice_is_copied_the_second_time(arena):
    arena.grant([MIB])
    x = here(numbers)
    first = put(arena, x)
    assert not is_here(arena, x)
    second = put(arena, x)
    assert first.handle.offset != second.handle.offset
    assert arena.made_here == 1


def test_resizing_an_array_does_not_change_its_chunk(arena):
    arena.grant([MIB])
    x = here(numbers)
    chunk = put(arena, x)
    x.resize(2 * N, refcheck=False)
    assert np.array_equal(x[:N], numbers())
    x[:] = -1
    assert np.array_equal(read(chunk.handle, chunk.map()), numbers())


def test_unused_grants_are_returned(arena):
    arena.grant([MIB, 2 * MIB])
    x = here(numbers)
    arena.trim_unneeded()  # what is unneeded is known from the second time on
    del x
    x = here(numbers)
    del x
    arena.trim_unneeded()
    assert is_here(arena, here(numbers))
    assert not is_here(arena, here(numbers, 2 * N))
    arena.trim()
    assert not is_here(arena, here(numbers))
    assert (arena.filled, arena.live) == (0, 0)
    assert blocks(arena.fd) < MIB


def test_memory_comes_with_an_array_and_only_a_little_waits_for_the_next(arena):
    n = 3 * N
    arena.grant([3 * MIB] * 2)
    assert (arena.filled, blocks(arena.fd) < MIB) == (0, True)
    arrays = [here(numbers, n) for _ in range(2)]
    assert arena.filled == 6 * MIB
    for _ in range(5):  # no more wait for an array than take a quarter
        arena.grant([3 * MIB])
        arrays.append(here(numbers, n))
    assert all(is_here(arena, x) for x in arrays)
    assert arena.filled == 21 * MIB
    last = arrays[0].ctypes.data
    while arrays:
        arrays.pop()
    assert (
        array_memory.RESERVED_PER_THREAD - 3 * MIB
        < arena.filled
        <= array_memory.RESERVED_PER_THREAD
    )
    assert arena.filled <= blocks(arena.fd) < arena.filled + MIB
    assert here(numbers, n).ctypes.data == last


def test_the_next_array_reuses_the_memory_of_a_released_chunk(arena):
    arena.grant([MIB] * 4)
    arrays = [here(numbers) for _ in range(2)]
    chunks = [put(arena, x) for x in arrays]
    offsets = {chunk.handle.offset for chunk in chunks}
    arrays.clear()
    chunks.clear()
    arena.recycle()
    assert arena.filled == 2 * MIB
    arrays = [here(numbers) for _ in range(2)]
    assert {put(arena, x).handle.offset for x in arrays} == offsets
    assert arena.filled == 2 * MIB
    arrays.clear()
    arena.spare = MIB
    arena.recycle()
    assert arena.trim_excess() == MIB, "no more wait than may"


def test_memory_of_released_chunks_counts_as_reserved(arena):
    assert arena.spare == 2 * MIB, "a small part of it"
    arena.spare = array_memory.RESERVED_PER_THREAD
    chunks = [put(arena, numbers(3 * N)) for _ in range(4)]
    assert not arena.has_excess
    chunks.clear()
    assert arena.has_excess
    assert arena.trim_excess() == 9 * MIB
    assert not arena.has_excess


def gives_large_pages():
    """Whether the kernel makes a large page when it is asked to."""
    with mmap.mmap(-1, 4 * MIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory[:] = bytes(4 * MIB)
        try:
            memory.madvise(25)  # MADV_COLLAPSE
        except OSError:
            return False
    return True


@pytest.mark.skipif(not gives_large_pages(), reason="the kernel gives no large pages")
@pytest.mark.parametrize("more", [0, 100_000])
def test_memory_comes_in_large_pages(arena, more):
    n = N * 2 + more // 8
    most = 2 * (more + 4096)
    for _ in range(10):
        arena.grant([8 * n, 8 * n])
        before = array_memory.filled()
        x, y = here(numbers, n), here(numbers, n)
        assert is_here(arena, x)
        assert is_here(arena, y)
        in_small = array_memory.filled() - before
        assert in_small >= 2 * more
        assert blocks(arena.fd) <= 2 * (8 * n + 4096) + MIB
        if in_small <= most:
            break
        # Under load the kernel refuses a large page now and then.
        x = y = None
        arena.trim()
    assert in_small <= most
    assert np.array_equal(x, y)
    chunk = put(arena, x)
    x[0] = 1
    assert read(chunk.handle, chunk.map())[0] == 0
    del x, y, chunk
    arena.trim()
    assert blocks(arena.fd) < MIB


def test_copies_use_large_or_small_pages(arena):
    x = numbers(4 * N + 1000)
    chunk = put(arena, x)
    assert np.array_equal(read(chunk.handle, chunk.map()), x)
    assert arena.made_here == 0
    assert blocks(arena.fd) <= x.nbytes + MIB


def test_the_oldest_grants_give_way_to_new_ones(arena):
    arena.grant([2 * MIB] * 4)
    last = here(numbers, 2 * N).ctypes.data  # it waits again, but not for long
    arena.grant([5 * MIB])
    arrays = [here(numbers, n * N) for n in (5, 2, 2)]
    assert [is_here(arena, x) for x in arrays] == [True, True, False]
    assert arrays[1].ctypes.data == last


def test_grants_give_way_to_published_chunks(arena):
    arena.grant([4 * MIB, 4 * MIB])
    kept = [arena.put(*to_frames(numbers(7 * N)), plain=True) for _ in range(4)]
    assert None not in kept
    assert arena.live == 28 * MIB


def test_only_a_part_of_the_memory_is_granted(arena):
    arena.grant([2 * MIB] * 10)
    assert (arena.filled, arena.live) == (0, 0)
    arrays = []
    for _ in range(20):
        arena.grant([2 * MIB])
        arrays.append(here(numbers, 2 * N))
    assert sum(is_here(arena, x) for x in arrays) == 12
    assert arena.filled == 24 * MIB
    assert put(arena, numbers(7 * N)) is not None  # that there is room for is not made here


def test_arrays_outlast_the_arena(arena):
    address = create_segment(segment_size(8 * MIB))
    other = Arena(address, 8 * MIB)
    other.grant([MIB])
    x = here(numbers)
    assert is_here(other, x)
    assert not is_here(arena, x)
    assert put(arena, x) is not None
    assert arena.made_here == 0
    other.close()
    os.close(address.fd)
    del other
    gc.collect()
    assert np.array_equal(x, numbers())
    del x
    # what was its place belongs to no arena that publishes
    assert put(arena, here(numbers)) is not None
    assert arena.made_here == 0


def test_a_closed_arenas_memory_goes_with_its_arrays():
    address = create_segment(segment_size(32 * MIB))
    segment = str(os.fstat(address.fd).st_ino)
    assert segment in segments([os.getpid()])
    closed = Arena(address, 32 * MIB)
    drop = put(closed, numbers(4 * N))
    closed.grant([MIB] * 5)
    kept, published, ended = here(numbers), here(numbers), here(numbers)
    chunks = [put(closed, published), put(closed, ended)]
    del drop, ended
    closed.close()
    assert 4 * MIB > blocks(address.fd) > 3 * MIB
    chunks.pop()
    assert 3 * MIB > blocks(address.fd) > 2 * MIB
    chunks.pop()
    assert 3 * MIB > blocks(address.fd) > 2 * MIB, "of the arrays"
    os.close(address.fd)
    del closed
    gc.collect()
    assert np.array_equal(kept, numbers())
    assert np.array_equal(published, numbers())
    del kept
    assert segment in segments([os.getpid()])
    del published
    gc.collect()
    assert segment not in segments([os.getpid()])


def test_arrays_that_end_after_their_arena_is_closed_are_given_back_with_the_next_chunk(arena):
    arena.grant([MIB])
    x = here(numbers)
    chunk = put(arena, -numbers())
    arena.close()
    del x
    del chunk
    assert (arena.filled, arena.live) == (0, 0)
    assert blocks(arena.fd) < 200_000


def test_threads_get_memory_of_their_own(arena):
    arena.grant([MIB] * 8)
    wrong = []

    def work(i):
        for k in range(200):
            x = np.full(N, float(i))
            y = x + k
            if not ((x == i).all() and (y == i + k).all()):
                wrong.append((i, k))

    threads = [threading.Thread(target=here, args=(work, i)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_forked_process_makes_arrays_of_its_own(arena):
    arena.grant([MIB])
    child = Child(lambda: is_here(arena, here(np.full, N, 77.0)))
    x = here(np.full, N, 1.0)
    assert is_here(arena, x)
    assert child.call() is False
    assert (x == 1).all()


def test_writes_of_a_forked_process_stay_private(arena):
    arena.grant([MIB, MIB])
    held = [here(numbers), here(numbers)]
    chunk = put(arena, held[0])
    held[0] += 1  # private to the parent, and inherited
    held[0] -= 1

    def write():
        for x in held:
            x += 1
        totals = [x.sum() for x in held]
        held[0].resize(2 * N, refcheck=False)
        del x
        held.clear()
        return totals

    assert Child(write).call() == [numbers().sum() + N] * 2
    for x in (*held, read(chunk.handle, chunk.map())):
        assert np.array_equal(x, numbers())
    del x
    assert is_here(arena, held[1])


def test_a_forked_process_may_grant_memory_of_its_own(arena):
    arena.grant([MIB])

    def make():
        address = create_segment(segment_size(32 * MIB))
        own = Arena(address, 32 * MIB)
        own.grant([MIB])
        x = here(numbers)
        chunk = put(own, x)
        view = read(chunk.handle, chunk.map())
        return own.made_here, view.sum()

    assert Child(make).call() == (1, numbers().sum())


def test_without_the_compiled_part_all_is_copied(arena, monkeypatch):
    monkeypatch.setattr(array_memory, "native", None)
    assert not array_memory.native
    arena.grant([MIB])
    x = here(numbers)
    assert array_memory.sizes_wanted() == []
    chunk = put(arena, x)
    assert np.array_equal(read(chunk.handle, chunk.map()), numbers())
    assert arena.made_here == 0
