"""Implements the slowest tier: chunks in a `SpillFile`, as `SpillBuffer` of distributed expects."""

from __future__ import annotations

import contextlib
import threading
import traceback
import weakref
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any, Literal, TypeGuard

import numpy as np
from dask.typing import Key
from distributed.metrics import context_meter
from distributed.protocol.compression import decompress, maybe_compress
from distributed.sizeof import safe_sizeof
from distributed.spill import MaxSpillExceeded, PickleError, SpilledSize
from numpy.typing import NDArray

from dask_marsched.store.frames import (
    from_frames,
    is_plain_array,
    is_strided,
    to_frames,
    to_pieces,
)
from dask_marsched.store.mapping import Mapping, frame_offsets
from dask_marsched.store.spill_file import SpilledFrames, SpillFile, SpillFileFull

#: Smallest array whose place in memory is recorded, bytes.
_LEAST_NOTED = 64 * 1024


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """One chunk on disk; `value` returns the object last written or read, while it exists."""

    header: bytes
    codecs: tuple[str | None, ...]
    frames: SpilledFrames
    weight: SpilledSize
    value: list[Callable[[], object | None]]


_Layout = tuple[object, ...]


class SpillTier(MutableMapping[Key, object]):
    """The disk tier: an uncompressed array is mapped back. Thread-safe for different keys.

    A mapped array takes no memory until it is accessed, and no second write while it is unmodified.
    `max_weight` bounds the bytes on disk; OSError if the file cannot be created.
    """

    def __init__(
        self, directory: str, max_weight: int | Literal[False], compression: str | None
    ) -> None:
        self.compression = compression
        # Of chunks, and of their bytes. The unchanged were not written: they were unmodified since
        # read from disk, or shared memory with such.
        kinds = ("written", "unchanged", "read")
        self.counters = {f"{kind}{unit}": 0 for kind in kinds for unit in ("", "_bytes")}
        self.total_weight = SpilledSize(0, 0)
        # The bound is one of the disk, so that chunks mapped back count as well.
        self._file = SpillFile(directory, max_weight)
        self.entries: dict[Key, Entry] = {}
        # By address: a mapping while it exists, and the entry that it shows.
        self._mapped: dict[int, tuple[weakref.ref[Mapping], Entry]] = {}
        # By address and length: an array, an entry with the same bytes while it exists, and its
        # layout. Changed only in atomic steps, as finalizers change it too.
        self._places: dict[tuple[int, int], tuple[weakref.ref[NDArray[Any]], Entry, _Layout]] = {}
        self._lock = threading.RLock()

    def __setitem__(self, key: Key, value: object) -> None:
        self.put(key, self.write(key, value))

    def __getitem__(self, key: Key) -> object:
        return self.read(self.entries[key])

    def __delitem__(self, key: Key) -> None:
        with self._lock:
            self.total_weight -= self.entries.pop(key).weight

    def __contains__(self, key: object) -> bool:
        return key in self.entries

    def __iter__(self) -> Iterator[Key]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def put(self, key: Key, entry: Entry) -> None:
        """Store an entry under a key, in place of an earlier one."""
        with self._lock:
            if key in self.entries:
                del self[key]
            self.entries[key] = entry
            self.total_weight += entry.weight

    def lend(self, values: dict[Key, object], entries: dict[Key, Entry | None]) -> None:
        """Return these values for their keys, instead of reading the disk, until it is emptied.

        They are of ``entries``; a key may have been computed again since. Most objects are found
        while they exist; lists and strings have no weak references.
        """
        for key in values:
            entry = self.entries.get(key)
            if entry is None or entry is not entries[key]:
                continue
            if not (entry.value and entry.value[0]() is not None):
                entry.value[:] = [partial(values.get, key)]

    def read(self, entry: Entry) -> object:
        """Return the object of an entry, the same one if it still exists; raises OSError."""
        if entry.value and (used := entry.value[0]()) is not None:
            return used
        with context_meter.meter("disk-read", "seconds"):
            frames, mapping = entry.frames.read()
        nbytes = entry.weight.disk
        context_meter.digest_metric("disk-read", 1, "count")
        context_meter.digest_metric("disk-read", nbytes, "bytes")
        self.counters["read"] += 1
        self.counters["read_bytes"] += nbytes
        # measured like compression, by distributed itself
        unpacked = decompress({"compression": entry.codecs}, frames)
        with context_meter.meter("deserialize"):
            value = from_frames(entry.header, unpacked)
            if mapping is not None and not any(entry.codecs):
                # Called before the address is free, as in `_note`.
                forget = partial(self._mapped.pop, mapping.address)
                self._mapped[mapping.address] = weakref.ref(mapping, forget), entry
                self._note(value, entry)
        _remember(entry, value)
        return value

    def write(self, key: Key, value: object) -> Entry:
        """Write an object; raise PickleError, MaxSpillExceeded (beyond the bound) or OSError."""
        # The entry has no key yet, and its space is freed with it.
        try:
            entry = self._write(key, value)
        except Exception as error:
            # The traceback and its frames are a cycle. Python 3.12.1 crashes when it collects
            # one with memory views, whose memory would not be free before.
            traceback.clear_frames(error.__traceback__)
            raise
        _remember(entry, value)
        return entry

    def _unchanged(self, header: bytes, frames: list[memoryview]) -> Entry | None:
        """Return the entry from which an object was mapped, if it would be written alike."""
        # Of any object, as a dictionary of arrays: what it would write tells where it is.
        lengths = tuple(frame.nbytes for frame in frames)
        offsets, nbytes = frame_offsets(lengths)
        if not nbytes:
            return None
        _, offset, largest = max(zip(lengths, offsets, frames, strict=True), key=itemgetter(0))
        reference, entry = self._mapped.get(_address(largest) - offset, (None, None))
        mapping = reference and reference()
        if not mapping or not entry or (header, lengths) != (entry.header, entry.frames.lengths):
            return None
        for frame, mapped in zip(frames, mapping.frames(lengths), strict=True):
            # Small frames are made anew: the part of a pickle that is no buffer.
            is_same = frame.nbytes < _LEAST_NOTED and frame == mapped
            if not is_same and _address(frame) != _address(mapped):
                return None
        return None if mapping.modified() else entry

    def _on_disk(self, value: object, frames: list[memoryview]) -> Entry | None:
        """Return an entry with the bytes of an array that is another array's memory."""
        # `map_overlap` makes many such slices. The bytes are compared: either may have changed.
        if not self._is_noted(value):
            return None
        written = self._places.get(_place(value))
        if written is None:
            return None
        array, entry, layout = written
        is_same = array() is not None and layout == _layout(value)
        return entry if is_same and entry.frames.holds(frames) else None

    def _note(self, value: object, entry: Entry) -> None:
        """Record that an entry holds the bytes at an array's place in memory."""
        if not self._is_noted(value):
            return
        place = _place(value)
        # Called before the array's memory is free, so that there is no other array at its place. As
        # in `IdentityMap`, no function in Python.
        forget = partial(self._places.pop, place)
        self._places[place] = weakref.ref(value, forget), entry, _layout(value)

    def _is_noted(self, value: object) -> TypeGuard[NDArray[Any]]:
        return self.compression is None and is_plain_array(value) and value.nbytes >= _LEAST_NOTED

    def _write(self, key: Key, value: object) -> Entry:
        codecs: list[str | None]
        lengths: tuple[int, ...]
        frames: Iterable[Iterable[memoryview]]
        try:
            with context_meter.meter("serialize"):
                if self.compression is None and is_strided(value):
                    header, nbytes, pieces = to_pieces(value)
                    lengths, codecs, frames = (nbytes,), [None], [pieces]
                else:
                    header, whole = to_frames(value)
                    pieces = None
            if pieces is None:
                entry = self._unchanged(header, whole) or self._on_disk(value, whole)
                if entry is not None:
                    self.counters["unchanged"] += 1
                    self.counters["unchanged_bytes"] += entry.weight.disk
                    return entry
                codecs = self._compress(whole)
                lengths, frames = tuple(f.nbytes for f in whole), [[f] for f in whole]
        except Exception as error:
            raise PickleError(key) from error
        nbytes = sum(lengths)
        try:
            with context_meter.meter("disk-write", "seconds"):
                spilled = self._file.write(lengths, frames)
        except SpillFileFull:
            raise MaxSpillExceeded(key) from None
        context_meter.digest_metric("disk-write", 1, "count")
        context_meter.digest_metric("disk-write", nbytes, "bytes")
        self.counters["written"] += 1
        self.counters["written_bytes"] += nbytes
        weight = SpilledSize(safe_sizeof(value), nbytes)
        entry = Entry(header, tuple(codecs), spilled, weight, [])
        self._note(value, entry)
        return entry

    def _compress(self, frames: list[memoryview]) -> list[str | None]:
        codecs: list[str | None] = [None] * len(frames)
        for i, frame in enumerate(frames):
            codecs[i], smaller = maybe_compress(frame, compression=self.compression)
            frames[i] = memoryview(smaller).cast("B")
        return codecs


def _address(frame: memoryview) -> int:
    address: int = np.frombuffer(frame, np.uint8).__array_interface__["data"][0]
    return address


def _place(array: NDArray[Any]) -> tuple[int, int]:
    return array.__array_interface__["data"][0], array.nbytes


def _layout(array: object) -> _Layout:
    assert isinstance(array, np.ndarray)
    return array.shape, array.strides, array.dtype, array.flags.writeable


def _remember(entry: Entry, value: object) -> None:
    with contextlib.suppress(TypeError):  # no weak reference to this type
        entry.value[:] = [weakref.ref(value)]
