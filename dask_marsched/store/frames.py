"""Converts objects to frames of bytes and back, by Dask's own serialization."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from typing import Any, TypeGuard

import numpy as np
from distributed.protocol import deserialize, serialize
from numpy.typing import NDArray

#: Size of the pieces in which strided arrays are copied, bytes.
_PIECE = 1024 * 1024

Buffer = bytes | bytearray | memoryview


def to_frames(value: object) -> tuple[bytes, list[memoryview]]:
    """Return the header and the frames of an object, not copied if large; raises its own errors."""
    # Pickled, because `deserialize` modifies the headers of collections.
    header, frames = serialize(value, on_error="raise")
    return pickle.dumps(header), [_flat(frame) for frame in frames]


def from_frames(header: bytes, frames: Sequence[Buffer]) -> object:
    """Return the object, in the memory of the frames if that is writeable."""
    return deserialize(pickle.loads(header), list(frames))


#: Types of data that can be serialized without side effects, and packages with such types. Not all
#: of Python's own types are: a method refers to any object, a module to all of its own.
_PLAIN = frozenset({bool, int, float, complex, str, bytes, bytearray, type(None), range})
_DATA = frozenset({"datetime", "decimal", "numpy", "pandas", "pyarrow", "scipy"})
#: Largest collection whose elements are all checked.
_LOOKED_AT = 64


def is_data(value: Any, depth: int = 3) -> bool:
    """Whether an object may be serialized without a request."""
    # Serializing other objects might take long, fail, or talk to a server.
    kind = type(value)
    if kind in (dict, list, set, frozenset, tuple):
        if not depth or len(value) > _LOOKED_AT:
            return False
        items = [*value, *value.values()] if kind is dict else list(value)
        return all(is_data(item, depth - 1) for item in items)
    if issubclass(kind, np.ndarray) and (value.dtype.hasobject or value.dtype.metadata):
        return False
    return kind in _PLAIN or kind.__module__.partition(".")[0] in _DATA


def is_plain_array(value: object) -> TypeGuard[NDArray[Any]]:
    """Whether an array is only bytes, dtype and shape, and can be replaced by an equal one."""
    # Dask's serialization drops the metadata of a dtype.
    return (
        type(value) is np.ndarray
        and value.nbytes > 0
        and (value.flags.c_contiguous or value.flags.f_contiguous)
        and 0 not in value.strides
        and not value.dtype.hasobject
        and not value.dtype.metadata
    )


def is_strided(value: object) -> TypeGuard[NDArray[Any]]:
    """Whether an array is so strided that serializing it would copy it."""
    return (
        type(value) is np.ndarray
        and value.nbytes >= 2 * _PIECE
        and not (value.flags.c_contiguous or value.flags.f_contiguous)
        and 0 not in value.strides
        and not value.dtype.hasobject
    )


def to_pieces(value: NDArray[Any]) -> tuple[bytes, int, Iterator[memoryview]]:
    """Return header, size and pieces of a strided array; each piece is valid until the next."""
    # Never written to, so that it takes no memory.
    header, (frame,) = to_frames(np.empty(value.shape, value.dtype))
    return header, frame.nbytes, _pieces(value)


def _pieces(value: NDArray[Any]) -> Iterator[memoryview]:
    elements = max(_PIECE // value.dtype.itemsize, 1)
    flags = ["external_loop", "buffered"]
    with np.nditer(
        value, flags, [["readonly", "contig"]], order="C", buffersize=elements
    ) as pieces:  # type: ignore[call-overload]  # lists of flags: typed for one operand only
        for piece in pieces:
            yield memoryview(piece.view(np.uint8))


def _flat(frame: Buffer) -> memoryview:
    try:
        return pickle.PickleBuffer(frame).raw()
    except BufferError:  # neither C- nor Fortran-contiguous
        return memoryview(memoryview(frame).tobytes())
