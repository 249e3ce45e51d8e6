"""Computes sizes of chunks and of their slices, on plain integers."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field, replace
from math import prod
from typing import Any

Shape = tuple[int, ...]


@dataclass(slots=True, eq=False)
class Grid:
    """The chunks of an array: lengths in elements along every axis, and bytes an element."""

    lengths: tuple[tuple[int, ...], ...]
    itemsize: int  #: Summed over the arrays if a chunk holds several.
    _: KW_ONLY
    overhead: int = 0  #: Bytes of a chunk beside its elements: a dict's of arrays.
    certain: bool = True  #: False if the sizes are an estimate.
    #: True if a chunk is one element repeated by strides of zero, which alone uses memory.
    uniform: bool = False
    _held: tuple[tuple[int, ...], ...] = field(init=False)
    _arity: int = field(init=False)

    def __post_init__(self) -> None:
        self.lengths = self._held = tuple(map(tuple, self.lengths))
        if self.uniform:
            self._held = tuple(tuple(min(n, 1) for n in axis) for axis in self.lengths)
        self._arity = len(self.lengths) + 1

    def nbytes(self, key: tuple[Any, ...]) -> int | None:
        """Bytes of the chunk ``(name, i, j, ...)``; None if there is no such chunk."""
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
        """Shape of the chunk ``(name, i, j, ...)``; None if there is no such chunk."""
        if len(key) != self._arity:
            return None
        try:
            return tuple([axis[i] for axis, i in zip(self.lengths, key[1:], strict=True)])
        except (TypeError, IndexError):
            return None

    def as_estimate(self) -> Grid:
        """Return the same sizes as an estimate."""
        return replace(self, certain=False)

    def sliced_nbytes(self, key: tuple[Any, ...], index: Any) -> int | None:
        """Return the bytes after one slice for every axis, else None: a fast `sliced_shape`."""
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
        """Bytes of the whole array."""
        return prod(map(sum, self.lengths)) * self.itemsize


def sliced_shape(shape: Shape, index: Any) -> Shape | None:
    """Return the shape after slices, integers and at most one list; None for other indices."""
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
            # Beside a list an integer is broadcast with it and may move axes.
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
    # A vector of integers, detected without importing NumPy.
    kind = getattr(getattr(entry, "dtype", None), "kind", "")
    return kind in ("i", "u") and getattr(entry, "ndim", 0) == 1


def _filled(entries: tuple[Any, ...], ndim: int) -> tuple[Any, ...] | None:
    """Expand an ellipsis and missing axes to full slices."""
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
        # Nearly all slices are of these two kinds; building a range costs much more.
        if start is None and stop is None:
            return length
        if type(start) is int and type(stop) is int and 0 <= start <= stop <= length:
            return stop - start
    return len(range(*entry.indices(length)))
