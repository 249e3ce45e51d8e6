"""What one process tells another about a chunk in shared memory."""

from __future__ import annotations

from typing import Any, NamedTuple

from dask_marsched.store.segment import SegmentAddress


class Handle(NamedTuple):
    """Where a published chunk is. It stays there while its owner, or a peer's lock, holds it.

    Attributes
    ----------
    segment : SegmentAddress
    slot : int
        Which flag of the segment tells that the owner still holds it.
    offset : int
        Where it begins, bytes.
    header : bytes
        How to make an object of the frames again (see `dask_marsched.store.frames`).
    lengths : tuple of int
        Lengths of its frames, bytes.
    plain : bool
        It is an array and nothing else: made of its frames in no time.
    apart : tuple
        Frames that are chunks of their own: the place of each among all frames, ascending, its
        handle and its stamp.
    """

    segment: SegmentAddress
    slot: int
    offset: int
    header: bytes
    lengths: tuple[int, ...]
    plain: bool
    apart: tuple[tuple[int, Handle, int], ...] = ()

    @classmethod
    def from_message(cls, message: Any) -> Handle:
        """Return a handle that came as plain tuples.

        Raises
        ------
        ValueError, TypeError
            If it is none.
        """
        segment, slot, offset, header, lengths, plain, apart = message
        parts = tuple((position, cls.from_message(part), stamp) for position, part, stamp in apart)
        return cls(SegmentAddress(*segment), slot, offset, header, tuple(lengths), plain, parts)

    def of_parts(self, header: bytes, apart: tuple[tuple[int, Handle, int], ...]) -> Handle:
        """Return the handle of an object of which this is one chunk, and these are the others."""
        return self._replace(header=header, plain=False, apart=apart)

    def to_message(self) -> tuple[Any, ...]:
        """Return it as plain tuples."""
        parts = [(position, part.to_message(), stamp) for position, part, stamp in self.apart]
        return (tuple(self.segment), *self[1:-1], parts)
