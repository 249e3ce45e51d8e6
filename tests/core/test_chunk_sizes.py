"""The arithmetic of chunk sizes, with NumPy as the oracle."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_marsched.core.chunk_sizes import Grid, sliced_shape

GRID = Grid([(3, 3, 2), (4, 1)], 8)


@pytest.mark.parametrize(
    ("key", "shape"), [(("x", 0, 0), (3, 4)), (("x", 2, 1), (2, 1)), (("x", 1, 0), (3, 4))]
)
def test_a_chunk_weighs_its_elements(key, shape):
    assert GRID.shape(key) == shape
    assert GRID.nbytes(key) == shape[0] * shape[1] * 8


@pytest.mark.parametrize(
    "key", [("x",), ("x", 0), ("x", 0, 0, 0), ("x", 3, 0), ("x", "extra", 0), ("x", 0, 0.9)]
)
def test_keys_that_name_no_chunk_of_the_grid_have_no_size(key):
    assert GRID.nbytes(key) is None
    assert GRID.shape(key) is None
    assert GRID.sliced_nbytes(key, (slice(None), slice(None))) is None


def test_an_array_without_axes_has_one_chunk():
    assert Grid([], 8).nbytes(("x",)) == 8
    assert Grid([], 8).shape(("x",)) == ()
    assert Grid([], 8).whole() == 8


def test_the_overhead_is_added_to_every_chunk():
    grid = Grid([(3, 2)], 16, overhead=200)
    assert [grid.nbytes(("x", i)) for i in range(2)] == [248, 232]


def test_a_uniform_chunk_holds_one_element_and_an_empty_one_none():
    grid = Grid([(3, 0), (4,)], 8, uniform=True)
    assert grid.nbytes(("x", 0, 0)) == 8
    assert grid.nbytes(("x", 1, 0)) == 0
    assert grid.shape(("x", 0, 0)) == (3, 4)
    assert grid.whole() == 96


def test_the_whole_is_the_sum_of_the_chunks():
    keys = [("x", i, j) for i in range(3) for j in range(2)]
    assert GRID.whole() == sum(GRID.nbytes(key) for key in keys)


def test_doubt_changes_no_size():
    as_estimate = Grid([(3, 2)], 16, overhead=200).as_estimate()
    assert not as_estimate.certain
    assert as_estimate.nbytes(("x", 1)) == 232


def test_slices_of_several_arrays_in_a_chunk_are_left_open():
    assert Grid([(3,)], 8, overhead=1).sliced_nbytes(("x", 0), (slice(0, 1),)) is None
    assert Grid([(3,)], 8, uniform=True).sliced_nbytes(("x", 0), (slice(0, 1),)) is None


BOUND = st.none() | st.integers(-8, 8)
SLICE = st.builds(slice, BOUND, BOUND, st.none() | st.sampled_from([-3, -1, 1, 2, 5]))
SHAPE = st.lists(st.integers(0, 6), min_size=1, max_size=4).map(tuple)


@st.composite
def indexed(draw):
    shape = draw(SHAPE)
    entries = [draw(SLICE if not n else SLICE | st.integers(-n, n - 1)) for n in shape]
    entries = entries[: draw(st.integers(0, len(entries)))]
    for _ in range(draw(st.integers(0, 2))):
        entries.insert(draw(st.integers(0, len(entries))), None)
    if draw(st.booleans()):
        entries.insert(draw(st.integers(0, len(entries))), ...)
    return shape, tuple(entries)


@given(indexed())
def test_shapes_of_basic_indexing_equal_numpy(case):
    shape, index = case
    try:
        expected = np.empty(shape)[index].shape
    except IndexError:
        expected = None
    assert sliced_shape(shape, index) == expected


@given(st.data())
def test_sizes_of_slices_equal_numpy(data):
    lengths = data.draw(st.lists(st.lists(st.integers(0, 6), min_size=1), min_size=1, max_size=3))
    position = [data.draw(st.integers(0, len(axis) - 1)) for axis in lengths]
    index = tuple(data.draw(SLICE) for _ in lengths)
    chunk = np.empty([axis[i] for axis, i in zip(lengths, position, strict=True)])
    assert Grid(lengths, 8).sliced_nbytes(("x", *position), index) == chunk[index].nbytes


@pytest.mark.parametrize(
    "index", [([0, 2, 2], slice(1, 3)), (slice(None), np.array([1, 0])), ([1],), [2, 1, 0, 0]]
)
def test_lists_of_integers_are_counted(index):
    assert sliced_shape((3, 4), index) == np.empty((3, 4))[index].shape


@pytest.mark.parametrize(
    "index",
    [
        ([True, False, True],),  # as many as are set
        (np.array([True, False, True]),),
        ([0, 1], [0, 1]),  # several lists go together
        (0, [0, 1]),  # an integer takes part in it
        (5,),  # outside
        (slice(None), slice(None), slice(None)),  # too many
        ("name",),
        (np.array([[0, 1], [1, 0]]),),
        (..., ...),
    ],
)
def test_other_indices_are_left_open(index):
    assert sliced_shape((3, 4), index) is None
