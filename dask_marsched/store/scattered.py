"""Publishes objects of several frames, such as dicts of arrays, without copying shared ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dask_marsched.store.arena import Arena, SharedChunk
from dask_marsched.store.attachment import Attachments
from dask_marsched.store.frames import from_frames, is_plain_array, to_frames
from dask_marsched.store.segment import Handle


def array_bytes(arena: Arena, value: object) -> tuple[int, int]:
    """Return the bytes of the arrays in a value, and of those allocated in the arena."""
    found = {a.ctypes.data: a.nbytes for a in _arrays(value) if is_plain_array(a)}
    here = (n for address, n in found.items() if arena.is_allocated_here(address, n))
    return sum(found.values()), sum(here)


def _arrays(value: object, depth: int = 3) -> Iterator[np.ndarray]:
    if type(value) is np.ndarray:
        yield value
    elif depth and type(value) in (dict, list, set, tuple):
        items = value.values() if isinstance(value, dict) else value
        for item in items:  # type: ignore[attr-defined]  # one of these types
            yield from _arrays(item, depth - 1)


def put(
    arena: Arena, header: bytes, frames: Sequence[memoryview]
) -> tuple[Handle, list[SharedChunk]] | None:
    """Publish an object in chunks, which keep its handle valid; None if there is no room."""
    here = [
        arena.is_allocated_here(np.frombuffer(frame, np.uint8).ctypes.data, frame.nbytes)
        for frame in frames
    ]
    # Frames that have to be copied go first, as that may fail for lack of room. A frame that was
    # allocated here is no longer charged to this worker once it is in a chunk, even if nobody
    # keeps the chunk.
    rest = [frame for frame, is_here in zip(frames, here, strict=True) if not is_here]
    first = arena.put(header, rest) if any(frame.nbytes for frame in rest) else None
    if first is None and (rest or not frames):
        return None
    apart: list[tuple[int, SharedChunk]] = []
    for position, frame in enumerate(frames):
        if here[position]:
            chunk = arena.put(b"", [frame], plain=True)
            if chunk is None:
                return None
            apart.append((position, chunk))
    if first is None:  # its stamp is that of the first chunk
        first = apart.pop(0)[1]
    parts = tuple((position, chunk.handle, chunk.stamp) for position, chunk in apart)
    segment, slot, offset, _, lengths, *_ = first.handle
    handle = Handle(segment, slot, offset, header, lengths, plain=False, apart=parts)
    return handle, [first, *(chunk for _, chunk in apart)]


def exchanged(value: object, handle: Handle, chunks: Sequence[SharedChunk]) -> object:
    """Return an equal object with its copied frames in shared memory; may raise OSError."""
    _, frames = to_frames(value)
    apart = {position for position, *_ in handle.apart}
    copied = iter(chunks[0].map().frames(handle.lengths))
    return from_frames(
        handle.header, [f if i in apart else next(copied) for i, f in enumerate(frames)]
    )


def frames_of(attachments: Attachments, handle: Handle, stamp: int) -> list[memoryview]:
    """Return the frames of a peer's object; raises OSError if it is gone or cannot be mapped."""
    frames = attachments.map_stamped(handle, stamp).frames(handle.lengths)
    for position, part, of_part in handle.apart:
        frames[position:position] = attachments.map_stamped(part, of_part).frames(part.lengths)
    return frames
