"""Giving back parts of a file."""

from __future__ import annotations

import ctypes

_libc = ctypes.CDLL(None, use_errno=True)
_PUNCH_HOLE, _KEEP_SIZE = 0x02, 0x01


def punch(fd: int, offset: int, length: int) -> bool:
    """Give the memory or disk space of a part of a file back.

    Returns
    -------
    bool
        False if the file system cannot. The part is as it was then, and can still be reused.
    """
    arguments = ctypes.c_int64(offset), ctypes.c_int64(length)
    return bool(_libc.fallocate(fd, _PUNCH_HOLE | _KEEP_SIZE, *arguments) == 0)
