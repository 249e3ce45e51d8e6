"""The arithmetic of chunk sizes: what a chunk of a grid holds, what a slice leaves of it.

Everything here works on plain integers, so that a graph of 100,000 chunks is measured in a
fraction of a second. Who reads lengths and item sizes out of Dask's layers is `host.layers`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

Shape = tuple[int, ...]


class Grid:
    """The chunks of one array: their lengths along every axis and what an element weighs.

    Parameters
    ----------
    lengths : sequence of sequences of int
        For every axis the lengths of its chunks, in elements.
    itemsize : int
        Bytes of one element; the sum over the arrays if a chunk holds several of one shape.
    overhead : int
        Bytes of a chunk beside its elements, such as those of the dict around several arrays.
    certain : bool
        False if the sizes are an educated guess.
    uniform : bool
        True if every chunk is one element, repeated by strides of zero: then only this element
        is held, whatever the shape.
    """

    __slots__ = ("_arity", "_held", "certain", "itemsize", "lengths", "overhead", "uniform")

    def __init__(
        self,
        lengths: Sequence[Sequence[int]],
        itemsize: int,
        *,
        overhead: int = 0,
        certain: bool = True,
        uniform: bool = False,
    ) -> None:
        self.lengths = tuple(map(tuple, lengths))
        self.itemsize = itemsize
        self.overhead = overhead
        self.certain = certain
        self.uniform = uniform
        self._held = (
            tuple(tuple(min(n, 1) for n in axis) for axis in self.lengths)
            if uniform
            else self.lengths
        )
        self._arity = len(self.lengths) + 1

    def nbytes(self, key: tuple[Any, ...]) -> int | None:
        """Bytes of the chunk ``(name, i, j, ...)``; None if the grid has no such chunk."""
        if len(key) != self._arity:
            return None
        size = self.itemsize
        position = 0
        try:
            for axis in self._held:
                position += 1
                size *= axis[key[position]]
        except (TypeError, IndexError):
            return None
        return size + self.overhead

    def shape(self, key: tuple[Any, ...]) -> Shape | None:
        """Shape of the chunk ``(name, i, j, ...)``; None if the grid has no such chunk."""
        if len(key) != self._arity:
            return None
        try:
            return tuple([axis[i] for axis, i in zip(self.lengths, key[1:], strict=True)])
        except (TypeError, IndexError):
            return None

    def as_estimate(self) -> Grid:
        """Return the same sizes as an educated guess."""
        return Grid(
            self.lengths,
            self.itemsize,
            overhead=self.overhead,
            certain=False,
            uniform=self.uniform,
        )

    def sliced_nbytes(self, key: tuple[Any, ...], index: Any) -> int | None:
        """Bytes that slices leave of a chunk.

        The short way for what most slices of a chunk graph are: a slice for every axis. None for
        everything else, and where strides of zero play a part: `sliced_shape` knows more.
        """
        lengths = self.lengths
        if self.uniform or self.overhead or type(index) is not tuple:
            return None
        if not len(index) == len(lengths) == len(key) - 1 or not index:
            return None
        size = self.itemsize
        position = 0
        try:
            for entry in index:
                if type(entry) is not slice:
                    return None
                length = lengths[position][key[position + 1]]
                position += 1
                size *= _sliced_length(length, entry)
        except (TypeError, IndexError):
            return None
        return size

    def whole(self) -> int:
        """Bytes of all elements together, as one array."""
        return prod(map(sum, self.lengths)) * self.itemsize


def sliced_shape(shape: Shape, index: Any) -> Shape | None:
    """Shape that basic indexing leaves.

    Parameters
    ----------
    shape : tuple of int
        Shape of the array that is indexed.
    index : slice, int, None, Ellipsis, or a tuple of them
        The index. Lists and vectors of integers ("fancy" indices) may stand at one place at
        most and beside slices only; masks are not understood.

    Returns
    -------
    tuple of int or None
        None if the index is not understood or does not fit the shape.
    """
    entries = _filled(index if type(index) is tuple else (index,), len(shape))
    if entries is None:
        return None
    result = []
    axis = 0
    fancy = 0
    for entry in entries:
        if entry is None:
            result.append(1)
            continue
        if axis == len(shape):
            return None
        length = shape[axis]
        axis += 1
        if type(entry) is slice:
            result.append(_sliced_length(length, entry))
        elif _is_int(entry):
            if not -length <= entry < length:
                return None
            # Beside a list an integer takes part in its broadcasting and may move axes.
            fancy += 1
        elif _is_list_of_ints(entry):
            result.append(len(entry))
            fancy += 1
        else:
            return None
    has_list = any(map(_is_list_of_ints, entries))
    return None if has_list and fancy > 1 else tuple(result)


def _is_int(entry: Any) -> bool:
    return type(entry) is int or (
        hasattr(entry, "__index__")
        and not isinstance(entry, bool)
        and not getattr(entry, "ndim", 0)
    )


def _is_list_of_ints(entry: Any) -> bool:
    if isinstance(entry, list):
        return bool(entry) and all(map(_is_int, entry))
    # A vector of integers, told without importing NumPy.
    kind = getattr(getattr(entry, "dtype", None), "kind", "")
    return kind in ("i", "u") and getattr(entry, "ndim", 0) == 1


def _filled(entries: tuple[Any, ...], ndim: int) -> tuple[Any, ...] | None:
    """Put full slices where an ellipsis stands or axes are left out."""
    dots = [i for i, entry in enumerate(entries) if entry is Ellipsis]
    if len(dots) > 1:
        return None
    used = sum(entry is not None and entry is not Ellipsis for entry in entries)
    full = (slice(None),) * (ndim - used)
    if not dots:
        return entries + full
    return entries[: dots[0]] + full + entries[dots[0] + 1 :]


def _sliced_length(length: int, entry: slice) -> int:
    start, stop, step = entry.start, entry.stop, entry.step
    if step is None or step == 1:
        # Nearly all slices of a chunk graph are of these two kinds, and a range costs much more.
        if start is None and stop is None:
            return length
        if type(start) is int and type(stop) is int and 0 <= start <= stop <= length:
            return stop - start
    return len(range(*entry.indices(length)))
