"""Measures the peak of this process's resident memory between two moments."""

from __future__ import annotations

import os
import weakref


class PeakMeter:
    """Reads and resets the high-water mark of this process's resident memory, on Linux only."""

    _of_this_process: weakref.WeakSet[PeakMeter] = weakref.WeakSet()

    def __init__(self) -> None:
        self._of_this_process.add(self)
        self._files: list[int] = []
        try:
            for name, access in (("status", os.O_RDONLY), ("clear_refs", os.O_WRONLY)):
                self._files.append(os.open(f"/proc/self/{name}", access | os.O_CLOEXEC))
            self.lap()
        except (OSError, ValueError):
            self._close_files()  # but it counts: the mark is of the whole process

    @property
    def available(self) -> bool:
        """Whether the mark can be used, and for this worker alone."""
        return bool(self._files) and len(self._of_this_process) == 1

    def lap(self) -> int:
        """Return the peak since the last call, bytes, and reset it."""
        if not self._files:
            return 0
        status, reset = self._files
        text = os.pread(status, 4096, 0)
        start = text.index(b"VmHWM:") + 6
        peak = int(text[start : text.index(b"kB", start)]) * 1024
        os.write(reset, b"5")
        return peak

    def close(self) -> None:
        """Close the files, and leave the mark to other workers."""
        self._of_this_process.discard(self)
        self._close_files()

    def _close_files(self) -> None:
        while self._files:
            os.close(self._files.pop())
