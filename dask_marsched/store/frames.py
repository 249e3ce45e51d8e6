"""Objects as frames of bytes, and back: Dask's own serialization."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any, TypeGuard

import numpy as np
from distributed.protocol import deserialize, serialize
from numpy.typing import NDArray

Buffer = bytes | bytearray | memoryview


def to_frames(value: object) -> tuple[bytes, list[memoryview]]:
    """Return the header and the frames of an object; large ones are not copied.

    Raises
    ------
    Exception
        Whatever the object raises, or `TypeError` if it cannot be serialized.
    """
    header, frames = serialize(value, on_error="raise")
    # Pickled, because `deserialize` takes headers of collections apart
    return pickle.dumps(header), [_flat(frame) for frame in frames]


def from_frames(header: bytes, frames: Sequence[Buffer]) -> object:
    """Return the object; it uses the memory of the frames if they are writeable."""
    return deserialize(pickle.loads(header), list(frames))


def is_plain_array(value: object) -> TypeGuard[NDArray[Any]]:
    """Tell whether an object is an array and nothing else: its bytes, its dtype and its shape.

    Such a one may be replaced by another over the same bytes.
    """
    return (
        type(value) is np.ndarray
        and value.nbytes > 0
        and (value.flags.c_contiguous or value.flags.f_contiguous)
        and 0 not in value.strides
        and not value.dtype.hasobject
    )


def _flat(frame: Buffer) -> memoryview:
    try:
        return pickle.PickleBuffer(frame).raw()
    except BufferError:  # neither C- nor Fortran-contiguous
        return memoryview(memoryview(frame).tobytes())
