"""Arrays whose bytes are apart are written piece by piece, as if they were written whole."""

import threading
import tracemalloc

import numpy as np
import pytest

from dask_marsched.store.frames import (
    from_frames,
    is_data,
    is_plain_array,
    is_strided,
    to_frames,
    to_pieces,
)
from tests.store.arrays import kinds, same


def apart():
    x = np.random.default_rng(0).random((1202, 402))
    record = np.zeros((1202, 402), dtype=[("a", "f8"), ("b", "i2")])
    record["b"] = x * 1000
    return {
        "inner": x[1:-1, 1:-1],
        "rows": np.concatenate([x, x])[::2],
        "backwards": x[:, ::-1],
        "transposed": np.stack([x, x]).transpose(1, 0, 2),
        "big-endian": x.astype(">f8")[:, 1:],
        "datetimes": (x * 1e6).astype("M8[s]")[:, 1:],
        "complex": x.astype(complex)[1:, 1:],
        "structured": record[:, 1:],
        "few rows": np.random.default_rng(0).random((3, 300_000))[:, 1:-1],
    }


@pytest.mark.parametrize("kind", apart())
def test_the_pieces_are_those_of_a_copy(kind):
    value = apart()[kind]
    assert is_strided(value)
    header, nbytes, pieces = to_pieces(value)
    expected, (frame,) = to_frames(value)
    written = bytearray()
    for piece in pieces:
        written += piece
    assert (header, nbytes, written) == (expected, value.nbytes, bytes(frame))
    assert same(from_frames(header, [written]), value)


def test_no_copy_is_made():
    value = np.ones((2002, 1002))[1:-1, 1:-1]
    tracemalloc.start()
    try:
        _, nbytes, pieces = to_pieces(value)
        tracemalloc.reset_peak()
        assert sum(piece.nbytes for piece in pieces) == nbytes == 16_000_000
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3 * 1024 * 1024


@pytest.mark.parametrize(
    "value",
    [
        np.zeros((1000, 1000)),
        np.zeros((1000, 1000), order="F"),
        np.zeros((100, 100))[1:, 1:],
        np.broadcast_to(np.zeros((1000, 1)), (1000, 1000))[1:, 1:],
        np.full((1000, 1000), None)[1:, 1:],
        np.ma.masked_all((1000, 1000))[1:, 1:],
        "text" * 10**6,
    ],
    ids=["c", "fortran", "small", "broadcast", "objects", "masked", "text"],
)
def test_others_are_serialized_by_dask(value):
    assert not is_strided(value)


class Posing:
    """Claims to be an array, as proxies do."""

    @property
    def __class__(self):
        return np.ndarray


def test_data_may_be_serialized_without_a_request():
    kept = {name: is_data(value) for name, value in kinds().items()}
    assert [name for name, yes in kept.items() if not yes] == ["object"]
    for value in (threading.Lock(), [{"n": threading.Lock()}], [[[[[1]]]]], list(range(1000))):
        assert not is_data(value)
    assert not is_data(Posing())
    assert is_data({"n": 1, "total": [np.float64(2.0), None], "names": ("a", b"b")})


class Model:
    def predict(self):
        return self


@pytest.mark.parametrize(
    "value",
    [
        Model().predict,
        Model,
        threading,
        np.full,
        (i for i in range(3)),
        [1].append,
        ValueError("of mine"),
        slice(Model()),
        frozenset([Model()]),
        {Model(): 1},
    ],
)
def test_what_may_refer_to_any_object_is_no_data(value):
    assert not is_data(value)
    assert not is_data({"a": np.ones(3), "b": value})


def test_an_array_with_metadata_would_not_come_back_equal():
    dtype = np.dtype("i4", metadata={"unit": "K"})
    assert not is_plain_array(np.zeros(3, dtype))
    assert not is_data([np.zeros(3, dtype)])
    assert is_plain_array(np.zeros(3, "i4"))
