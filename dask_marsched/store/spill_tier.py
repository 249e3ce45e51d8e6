"""The slowest tier: chunks in a `SpillFile`, as `distributed.spill.SpillBuffer` expects them."""

from __future__ import annotations

import threading
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from dask.typing import Key
from distributed.metrics import context_meter
from distributed.protocol.compression import decompress, maybe_compress
from distributed.sizeof import safe_sizeof
from distributed.spill import MaxSpillExceeded, PickleError, SpilledSize

from dask_marsched.store.extents import whole_pages
from dask_marsched.store.frames import from_frames, is_plain_array, to_frames
from dask_marsched.store.identities import IdentityMap
from dask_marsched.store.mapping import Mapping
from dask_marsched.store.spill_file import SpilledFrames, SpillFile


@dataclass(frozen=True, slots=True)
class _Entry:
    header: bytes
    codecs: tuple[str | None, ...]
    frames: SpilledFrames
    weight: SpilledSize


@dataclass(frozen=True, slots=True)
class _Origin:
    """Which entry an array was read from, and how it looked then."""

    entry: _Entry
    mapping: Mapping
    layout: tuple[object, ...]


@dataclass
class SpillCounters:
    """Counts since the tier was made.

    Attributes
    ----------
    written, written_bytes
        Chunks, and bytes of them, written to disk.
    unchanged, unchanged_bytes
        Chunks that were on disk before, were read, and left memory again without being written:
        nothing in them had changed.
    read, read_bytes
        Chunks, and bytes of them, read or mapped back.
    """

    written: int = 0
    written_bytes: int = 0
    unchanged: int = 0
    unchanged_bytes: int = 0
    read: int = 0
    read_bytes: int = 0


class SpillTier(MutableMapping[Key, object]):
    """Chunks on disk. Thread-safe for different keys.

    Arrays written uncompressed are mapped back: they take no memory until they are looked at, and
    as long as nobody writes to them they need not be written again.

    Parameters
    ----------
    directory : str
        Where the file is to be.
    max_weight : int or False
        Most bytes on disk.
    compression : str, optional
        One of Dask's compressions, or ``auto``; by default nothing is compressed.

    Raises
    ------
    OSError
        If no file can be made there.
    """

    def __init__(
        self, directory: str, max_weight: int | Literal[False], compression: str | None
    ) -> None:
        self.max_weight = max_weight
        self.compression = compression
        self.counters = SpillCounters()
        self.total_weight = SpilledSize(0, 0)
        self._file = SpillFile(directory)
        self._entries: dict[Key, _Entry] = {}
        self._origins: IdentityMap[_Origin] = IdentityMap()
        self._lock = threading.Lock()

    def __setitem__(self, key: Key, value: object) -> None:
        entry = self._unchanged(value) or self._write(key, value)
        with self._lock:
            assert key not in self._entries  # `SpillBuffer` deletes before it writes again
            self._entries[key] = entry
            self.total_weight += entry.weight

    def __getitem__(self, key: Key) -> object:
        entry = self._entries[key]
        with context_meter.meter("disk-read", "seconds"):
            frames, mapping = entry.frames.read()
        nbytes = entry.weight.disk
        context_meter.digest_metric("disk-read", 1, "count")
        context_meter.digest_metric("disk-read", nbytes, "bytes")
        self.counters.read += 1
        self.counters.read_bytes += nbytes
        with context_meter.meter("deserialize"):
            if any(entry.codecs):
                unpacked = decompress({"compression": entry.codecs}, frames)
                return from_frames(entry.header, unpacked)
            value = from_frames(entry.header, frames)
        if mapping is not None and is_plain_array(value):
            self._origins.set(value, _Origin(entry, mapping, _layout(value)))
        return value

    def __delitem__(self, key: Key) -> None:
        with self._lock:
            entry = self._entries.pop(key)
            self.total_weight -= entry.weight

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[Key]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def memory_size(self, key: Key) -> int:
        """Return how large a key on disk is in memory, bytes; 0 if it is not on disk."""
        entry = self._entries.get(key)
        return entry.weight.memory if entry is not None else 0

    def _unchanged(self, value: object) -> _Entry | None:
        origin = self._origins.get(value)
        if origin is None or origin.layout != _layout(value) or origin.mapping.modified():
            return None
        self.counters.unchanged += 1
        self.counters.unchanged_bytes += origin.entry.weight.disk
        return origin.entry

    def _write(self, key: Key, value: object) -> _Entry:
        try:
            with context_meter.meter("serialize"):
                header, frames = to_frames(value)
        except Exception as error:
            raise PickleError(key) from error
        codecs: list[str | None] = [None] * len(frames)
        if self.compression is not None:
            for i, frame in enumerate(frames):
                codecs[i], smaller = maybe_compress(frame, compression=self.compression)
                frames[i] = memoryview(smaller).cast("B")
        nbytes = sum(frame.nbytes for frame in frames)
        # Chunks that are mapped back are in memory and on disk: the limit is one of the disk.
        if self.max_weight is not False and (
            self._file.live + whole_pages(nbytes) > self.max_weight
        ):
            raise MaxSpillExceeded(key)
        with context_meter.meter("disk-write", "seconds"):
            spilled = self._file.write(frames)
        context_meter.digest_metric("disk-write", 1, "count")
        context_meter.digest_metric("disk-write", nbytes, "bytes")
        self.counters.written += 1
        self.counters.written_bytes += nbytes
        return _Entry(header, tuple(codecs), spilled, SpilledSize(safe_sizeof(value), nbytes))


def _layout(array: object) -> tuple[object, ...]:
    assert isinstance(array, np.ndarray)
    return array.shape, array.strides, array.dtype, array.flags.writeable
