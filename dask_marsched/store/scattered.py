"""Objects of several frames, some of which were made in shared memory: only the rest is copied.

Partial results of reductions are dicts of arrays; to copy each would take them twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dask_marsched.store.arena import Arena, SharedChunk
from dask_marsched.store.attachment import Attachments
from dask_marsched.store.frames import from_frames, is_plain_array, to_frames
from dask_marsched.store.segment import Handle


def array_bytes(arena: Arena, value: object) -> tuple[int, int]:
    """Return the bytes of an array, or of those in a collection; and of those made here."""
    found = {a.ctypes.data: a.nbytes for a in _arrays(value) if is_plain_array(a)}
    here = (n for address, n in found.items() if arena.is_made_here(address, n))
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
    """Publish an object in as many chunks as it takes; None if there is no room for it.

    Returns
    -------
    Handle, list of SharedChunk
        Where it can be mapped from as long as all chunks are there. The first has the handle's
        stamp.
    """
    apart: list[tuple[int, SharedChunk]] = []
    rest: list[memoryview] = []
    for position, frame in enumerate(frames):
        chunk = None
        if arena.is_made_here(np.frombuffer(frame, np.uint8).ctypes.data, frame.nbytes):
            chunk = arena.put(b"", [frame], plain=True)
        if chunk is None:
            rest.append(frame)
        else:
            apart.append((position, chunk))
    if not rest and apart:
        first: SharedChunk | None = apart.pop(0)[1]
    else:
        first = arena.put(header, rest)
    if first is None:
        return None
    parts = tuple((position, chunk.handle, chunk.stamp) for position, chunk in apart)
    return first.handle.of_parts(header, parts), [first, *(chunk for _, chunk in apart)]


def exchanged(value: object, handle: Handle, chunks: Sequence[SharedChunk]) -> object:
    """Return an equal object in which what was copied lies in shared memory.

    Raises
    ------
    OSError
        If it cannot be mapped.
    """
    _, frames = to_frames(value)
    apart = {position for position, *_ in handle.apart}
    copied = iter(chunks[0].map().frames(handle.lengths))
    return from_frames(
        handle.header, [f if i in apart else next(copied) for i, f in enumerate(frames)]
    )


def frames_of(attachments: Attachments, handle: Handle, stamp: int) -> list[memoryview]:
    """Return the frames of an object of a peer that may have let go of it, or died with it.

    Raises
    ------
    OSError
        If it is gone, or cannot be mapped from here.
    """
    frames = attachments.map_stamped(handle, stamp).frames(handle.lengths)
    for position, part, of_part in handle.apart:
        frames[position:position] = attachments.map_stamped(part, of_part).frames(part.lengths)
    return frames
