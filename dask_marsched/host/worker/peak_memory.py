"""Measures the peak of this process's resident memory between two moments."""

from __future__ import annotations

import os
import weakref


class PeakMeter:
    """Reads and resets the high-water mark of this process's resident memory, on Linux only."""

    _of_this_process: weakref.WeakSet[PeakMeter] = weakref.WeakSet()

    def __init__(self) -> None:
        self._of_this_process.add(self)
        self._files: tuple[int, int] | None = None
        try:
            status = os.open("/proc/self/status", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return
        try:
            reset = os.open("/proc/self/clear_refs", os.O_WRONLY | os.O_CLOEXEC)
        except OSError:
            os.close(status)
            return
        self._files = (status, reset)
        try:
            self.lap()
        except (OSError, ValueError):
            self.close()

    @property
    def available(self) -> bool:
        """Whether the mark can be used, and for this worker alone."""
        return self._files is not None and len(self._of_this_process) == 1

    def lap(self) -> int:
        """Return the peak since the last call, bytes, and reset it."""
        if self._files is None:
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
        for number in self._files or ():
            os.close(number)
        self._files = None
