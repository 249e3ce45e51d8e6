"""Stores spilled chunks in one unnamed file per worker, which ends with it, and maps them back."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from dask_marsched.store.extents import Extent, ExtentTable
from dask_marsched.store.file_ranges import punch
from dask_marsched.store.mapping import Mapping, MappingPool, frame_offsets
from dask_marsched.store.releases import Releases

# Smaller chunks are copied, which costs less than a mapping, bytes.
_LEAST_MAPPED = 64 * 1024
_ENDLESS = 1 << 62
# Bytes compared at a time, to stay in the processor's cache.
_PIECE = 256 * 1024


# File systems whose servers report a full disk only when dirty pages reach them, as when a file is
# closed in stock Dask.
_REMOTE = re.compile(
    r"nfs\d?|cifs|smb\d?|9p|ceph|beegfs|afs|fuse\.(ceph|gcsfuse|glusterfs|juicefs|s3fs|sshfs)"
)


def is_remote(path: str, mounts: str) -> bool:
    """Whether an absolute path is on a network file system, given /proc/self/mountinfo."""
    found = "", ""
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        # Spaces and the like are written as octal numbers.
        point = re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), before.split(" ")[4])
        if f"{path}/".startswith(point.rstrip("/") + "/") and len(point) >= len(found[0]):
            found = point, after.split(" ")[0]
    return _REMOTE.fullmatch(found[1]) is not None


def _must_sync(directory: str) -> bool:
    with contextlib.suppress(OSError):
        return is_remote(
            os.path.realpath(directory), Path("/proc/self/mountinfo").read_text(errors="replace")
        )
    return False


class SpilledFrames:
    """Frames in a spill file, whose space is freed with the last reference to this object."""

    __slots__ = ("__weakref__", "_extent", "_file", "lengths", "nbytes")

    def __init__(self, file: SpillFile, extent: Extent | None, lengths: tuple[int, ...]) -> None:
        self._file = file
        self._extent = extent
        self.lengths = lengths
        _, self.nbytes = frame_offsets(lengths)

    def read(self) -> tuple[list[memoryview], Mapping | None]:
        """Return writeable frames, and their mapping if they are mapped; may raise OSError."""
        # A mapped frame is read from disk when a task accesses it, in the task's thread.
        if self._extent is None:
            return [memoryview(b"") for _ in self.lengths], None
        if self.nbytes >= _LEAST_MAPPED:
            file = self._file
            # A process may have 65530 mappings.
            with contextlib.suppress(OSError):
                mapping = file.pool.map(file.fd, self._extent.offset, self.nbytes, keep=self)
                return mapping.frames(self.lengths), mapping
        copy = np.empty(self.nbytes, np.uint8).data
        done = 0
        while done < self.nbytes:  # one call reads 2 GiB at most
            n = os.preadv(self._file.fd, [copy[done:]], self._extent.offset + done)
            if not n:
                raise OSError("the spill file is shorter than what was written to it")
            done += n
        offsets, _ = frame_offsets(self.lengths)
        return [copy[o : o + n] for o, n in zip(offsets, self.lengths, strict=True)], None

    def holds(self, frames: Sequence[memoryview]) -> bool:
        """Whether these frames equal the written ones."""
        # They are read piece by piece: a mapping would take as much memory as is to be freed.
        if tuple(frame.nbytes for frame in frames) != self.lengths or self._extent is None:
            return False
        offsets, _ = frame_offsets(self.lengths)
        piece = np.empty(_PIECE, np.uint8)
        for offset, frame in zip(offsets, frames, strict=True):
            whole = np.frombuffer(frame, np.uint8)
            for start in range(0, whole.nbytes, _PIECE):
                expected = whole[start : start + _PIECE]
                got = piece[: expected.nbytes]
                at = self._extent.offset + offset + start
                if os.preadv(self._file.fd, [got.data], at) != got.nbytes:
                    return False
                if not np.array_equal(got, expected):
                    return False
        return True


class SpillFileFull(Exception):
    """A write would exceed the bound of a `SpillFile`."""


class SpillFile:
    """The spill file of a worker, in a directory made if missing. Thread-safe; raises OSError.

    It holds ``most`` bytes at most, False for any number.
    """

    def __init__(self, directory: str, most: int | Literal[False] = False) -> None:
        # Most workers never spill, so the first write opens the file. Here: whether it could.
        os.close(_nameless_file(directory))
        self._directory = directory
        self._most = most
        self._syncs = _must_sync(directory)
        # Then writes take turns, as an error is told once, to whoever syncs next.
        self._turn = threading.Lock() if self._syncs else contextlib.nullcontext()
        self.fd = -1
        #: bytes written and still needed
        self.live = 0
        self._table = ExtentTable(start=0, end=_ENDLESS, cap=_ENDLESS, slots=_ENDLESS)
        self.releases = Releases()
        self.pool = MappingPool(self.releases)
        self.pool.close()  # it keeps none: the space of frames is released with them

    def write(
        self, lengths: tuple[int, ...], frames: Iterable[Iterable[memoryview]]
    ) -> SpilledFrames:
        """Write frames, each in one-dimensional pieces.

        May raise an OSError or `SpillFileFull`; then nothing stays allocated.
        """
        offsets, nbytes = frame_offsets(lengths)
        if not nbytes:
            return SpilledFrames(self, None, lengths)
        with self.releases.held():
            # Here, as other threads may be about to write as well.
            if self._most is not False and self.live + nbytes > self._most:
                raise SpillFileFull
            if self.fd < 0:
                self.fd = _nameless_file(self._directory)
            allocation = self._table.allocate(nbytes)
            self.live += nbytes
        assert allocation is not None  # the table is endless
        spilled = SpilledFrames(self, allocation.extent, lengths)
        self.releases.at_end_of(spilled, self._release, allocation.extent, nbytes)
        with self._turn:
            for start, pieces in zip(offsets, frames, strict=True):
                at = allocation.extent.offset + start
                for piece in pieces:
                    while piece:
                        n = os.pwrite(self.fd, piece, at)
                        at, piece = at + n, piece[n:]
            if self._syncs:
                # Else what did not reach the server would be read back as zeros.
                os.fdatasync(self.fd)
        return spilled

    def _release(self, extent: Extent, nbytes: int) -> None:
        self.live -= nbytes
        self._table.release(extent)
        self._table.reclaim(lambda orphan: orphan is extent)
        # Only this extent, as the event loop waits: all other free extents are empty already.
        self._table.empty(extent)
        if self.fd >= 0:
            # Punching also drops dirty pages before they reach the disk.
            punch(self.fd, extent.offset, extent.size)

    def __del__(self) -> None:
        if getattr(self, "fd", -1) >= 0:
            os.close(self.fd)
            self.fd = -1  # in a reference cycle other finalizers may run later


def _nameless_file(directory: str) -> int:
    os.makedirs(directory, exist_ok=True)  # a cleaner may have removed it
    try:
        return os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:  # not every file system has them
        fd, path = tempfile.mkstemp(dir=directory)
        os.unlink(path)
        return fd
