"""Which results in memory share the same bytes."""

import gc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_marsched.policies.eviction import Resident
from dask_marsched.store.buffers import Buffers, buffer_of
from dask_marsched.store.mapping import MappingPool
from dask_marsched.store.releases import Releases

N = 8000


def buffers_with(**values):
    buffers = Buffers()
    for key, value in values.items():
        buffers.add(key, value, value.nbytes)
    return buffers


def held(values, buffers):
    return sum(value.nbytes for value in values) + buffers.hidden


def test_a_view_of_a_view_is_of_the_same_bytes():
    x = np.zeros(N // 8)
    assert buffer_of(x) == buffer_of(x[:4][1:]) == buffer_of(x.reshape(10, -1).T) == (id(x), N)
    assert buffer_of(x.copy()) != buffer_of(x)


def test_arrays_of_one_message_share_a_buffer():
    message = memoryview(bytearray(N))
    arrays = [np.frombuffer(message[i : i + 80], "u1") for i in (0, 160)]
    assert buffer_of(arrays[0]) == buffer_of(arrays[1]) == (id(message.obj), N)


def test_a_mapped_array_counts_its_whole_mapping(tmp_path):
    with open(tmp_path / "file", "wb+") as file:
        file.truncate(N)
        mapping = MappingPool(Releases()).map(file.fileno(), 0, N, None)
    (frame,) = mapping.frames([N])
    assert buffer_of(np.frombuffer(frame)[:3]) == (id(mapping), N)


def test_other_peoples_memory_is_not_known(tmp_path):
    for value in (
        np.memmap(tmp_path / "file", "u1", "w+", shape=N)[:10],
        np.ma.masked_equal([1, 2], 1),
        np.array([None, {}]),
        [np.zeros(3)],
        "text",
    ):
        assert buffer_of(value) is None


def test_bytes_count_once_and_as_long_as_any_view_is_there():
    x = np.zeros(N // 8)
    views = {"all": x[:], "half": x[: N // 16], "edge": x[:1]}
    buffers = buffers_with(whole=x, **views)
    assert held([x, *views.values()], buffers) == N
    del x
    for key in ("whole", "all", "half"):
        buffers.discard(key)
        buffers.discard(key)
    assert held([views["edge"]], buffers) == N
    buffers.discard("edge")
    assert buffers.hidden == 0


def test_a_small_view_is_copied_and_the_rest_goes():
    x = np.zeros(N // 8)
    buffers = buffers_with(whole=x, view=x[:], edge=x[:2], other=np.ones(3))
    assert list(buffers.together()) == [
        Resident(("whole", "view"), N - 16, staying=("edge",)),
        Resident(("other",), 24),
    ]
    buffers.discard("whole")
    buffers.discard("view")
    assert next(buffers.together()) == Resident((), N - 16, staying=("edge",))


@pytest.mark.parametrize("n", [2, 4, 7])
def test_pieces_that_are_not_small_leave_together(n):
    pieces = np.zeros((n, N // 8))
    buffers = buffers_with(**{str(i): piece for i, piece in enumerate(pieces)})
    (together,) = buffers.together()
    assert together == Resident(tuple(map(str, range(n))), n * N)


def test_not_all_small_pieces_are_copied():
    pieces = np.zeros((16, N // 8))
    buffers = buffers_with(**{str(i): piece for i, piece in enumerate(pieces)})
    (together,) = buffers.together()
    assert (len(together.keys), len(together.staying)) == (14, 2)
    assert together.nbytes == 14 * N


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(0, 40))))
def test_the_totals_match_the_results_in_memory(changes):
    roots = [np.zeros(size) for size in (1, 10, 20, 40)]
    buffers, there = Buffers(), {}
    for key, root, size in changes:
        buffers.discard(key)
        there.pop(key, None)
        if size:
            there[key] = roots[root][:size]
            buffers.add(key, there[key], there[key].nbytes)
    gc.collect(0)
    expected = sum(r.nbytes for r in roots if any(v.base is r for v in there.values()))
    assert held(there.values(), buffers) == expected
    groups = list(buffers.together())
    assert sorted(k for g in groups for k in (*g.keys, *g.staying)) == sorted(there)
    stays = sum(there[k].nbytes for g in groups for k in g.staying)
    assert sum(g.nbytes for g in groups) == expected - stays
    assert stays <= expected / 8
