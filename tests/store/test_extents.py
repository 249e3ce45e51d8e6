from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from dask_marsched.store.extents import PAGE, ExtentTable, size_class, whole_pages

MIB = 1 << 20


def table(cap=16 * MIB, end=64 * MIB, slots=1000):
    return ExtentTable(start=PAGE, end=end, cap=cap, slots=slots)


@given(st.integers(1, 1 << 40))
def test_a_size_class_fits_and_wastes_at_most_a_quarter(nbytes):
    size = size_class(nbytes)
    assert size >= nbytes
    assert size % PAGE == 0
    assert size <= max(4 * PAGE, 1.25 * nbytes)
    assert size_class(size) == size


def test_released_extents_are_recycled_when_unread():
    extents = table()
    first = extents.allocate(3 * MIB).extent
    extents.release(first)
    read = {first}
    extents.reclaim(lambda e: e not in read)
    assert extents.allocate(3 * MIB).extent is not first
    read.clear()
    extents.reclaim(lambda e: e not in read)
    again = extents.allocate(29 * MIB // 10)
    assert again.extent is first
    assert again.filled_before == 3 * MIB


def test_a_much_too_large_extent_is_left_alone_while_there_are_addresses():
    extents = table(end=10 * MIB)
    large = extents.allocate(6 * MIB).extent
    extents.release(large)
    extents.reclaim(lambda e: True)
    assert extents.allocate(MIB).extent is not large
    assert extents.allocate(MIB).extent is not large
    assert extents.allocate(MIB).extent is large  # no more addresses


def test_free_extents_make_room_under_the_cap():
    extents = table(cap=4 * MIB)
    first = extents.allocate(3 * MIB).extent
    assert extents.allocate(2 * MIB) is None
    assert extents.filled == 3 * MIB
    extents.release(first)
    assert extents.allocate(2 * MIB) is None, "it may still be read"
    extents.reclaim(lambda e: True)
    allocation = extents.allocate(7 * MIB // 2)
    assert allocation.to_punch == [first]
    assert (first.filled, extents.filled) == (0, 7 * MIB // 2)


def test_extents_free_all_the_time_are_unneeded():
    extents = table()
    first, second, small = (extents.allocate(n).extent for n in (3 * MIB, 3 * MIB, MIB))
    for extent in (first, second, small):
        extents.release(extent)
    extents.reclaim(lambda e: True)
    assert extents.trim_unneeded() == [], "a moment ago they were in use"
    extents.release(extents.allocate(3 * MIB).extent)
    extents.reclaim(lambda e: True)
    assert extents.idle == 7 * MIB
    unneeded = extents.trim_unneeded()
    assert sorted(e.size for e in unneeded) == [MIB, 3 * MIB]
    assert (extents.idle, extents.filled) == (3 * MIB, 3 * MIB)
    assert len(extents.trim_unneeded()) == 1
    assert extents.filled == 0


def test_without_slots_nothing_new():
    extents = table(slots=1)
    only = extents.allocate(MIB).extent
    assert extents.allocate(MIB) is None
    extents.release(only)
    extents.reclaim(lambda e: True)
    assert extents.allocate(MIB).extent is only


operations = st.lists(
    st.one_of(
        st.tuples(st.just("allocate"), st.integers(1, 6 * MIB)),
        st.tuples(st.just("release"), st.integers(0, 100)),
        st.tuples(st.just("read"), st.integers(0, 100)),
        st.tuples(st.just("reclaim"), st.just(0)),
        st.tuples(st.just("empty"), st.integers(0, 100)),
        st.tuples(st.just("trim"), st.just(0)),
        st.tuples(st.just("trim unneeded"), st.just(0)),
        st.tuples(st.just("trim excess"), st.integers(0, 16 * MIB)),
    ),
    max_size=60,
)


@settings(max_examples=200, deadline=None)
@given(operations)
def test_invariants(steps):
    extents = table()
    held, everything, read = [], set(), set()

    def is_free(extent):
        return extent not in held and extent not in extents.orphans

    for step, n in steps:
        if step == "allocate":
            allocation = extents.allocate(n)
            if allocation is not None:
                extent = allocation.extent
                assert extent not in held
                assert extent not in read, "somebody reads what is overwritten"
                assert whole_pages(n) <= extent.filled <= extent.size
                assert all(is_free(v) for v in allocation.to_punch)
                held.append(extent)
                everything.add(extent)
        elif step == "release" and held:
            extents.release(held.pop(n % len(held)))
        elif step == "read" and held:
            read ^= {held[n % len(held)]}
        elif step == "reclaim":
            extents.reclaim(lambda e, read=read: e not in read)
        elif step == "empty":
            idle = extents.idle
            free = sorted((e.slot, e) for e in everything if is_free(e))
            if free:
                _, extent = free[n % len(free)]
                filled = extent.filled
                extents.empty(extent)
                assert (extent.filled, extents.idle) == (0, idle - filled)
        elif step == "trim":
            assert all(is_free(v) for v in extents.trim())
        elif step == "trim unneeded":
            idle = extents.idle
            victims = extents.trim_unneeded()
            assert all(is_free(v) and not v.filled for v in victims)
            assert extents.idle <= idle
        elif step == "trim excess":
            idle = extents.idle
            victims = extents.trim(n)
            assert all(is_free(v) and not v.filled for v in victims)
            assert extents.idle <= max(0, idle - n)
        assert extents.idle == sum(e.filled for e in everything if is_free(e))
        assert extents.filled == sum(e.filled for e in everything) <= extents.cap
        assert extents.live == sum(e.filled for e in held)
        places = sorted((e.offset, e.offset + e.size) for e in everything)
        assert all(a[1] <= b[0] for a, b in pairwise(places))
        assert not places or (places[0][0] >= PAGE and places[-1][1] <= extents.end)
        assert len({e.slot for e in everything}) == len(everything)


def test_orphans_are_looked_at_in_turn():
    extents = table()
    found = [extents.allocate(PAGE).extent for _ in range(5)]
    for extent in found:
        extents.release(extent)
    looked_at = []

    def is_unread(extent):
        looked_at.append(extent)
        return False

    for _ in range(3):
        extents.reclaim(is_unread, 2)
    assert looked_at == [*found, found[0]]
    assert extents.reclaim(lambda extent: extent is found[1]) == [found[1]]
