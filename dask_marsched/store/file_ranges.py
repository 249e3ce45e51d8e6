"""Locks byte ranges of a file until the last holding process ends, and releases their space."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import struct

# struct flock: type, whence, start, length, and a process id, which must be 0
_FLOCK = "hhqqi0q"
_libc = ctypes.CDLL(None, use_errno=True)
_PUNCH_HOLE, _KEEP_SIZE = 0x02, 0x01


def _set(fd: int, kind: int, offset: int, length: int) -> None:
    # The lock belongs to the open file description: two openings in one process exclude each
    # other, and closing another descriptor of the file drops nothing.
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack(_FLOCK, kind, 0, offset, length, 0))


def lock_read(fd: int, offset: int, length: int) -> None:
    """Lock a range against reuse; raises OSError if its owner is about to reuse it."""
    _set(fd, fcntl.F_RDLCK, offset, length)


def unlock(fd: int, offset: int, length: int) -> None:
    """Drop the locks of this open file description on a range."""
    _set(fd, fcntl.F_UNLCK, offset, length)


def lock_unread(fd: int, offset: int, length: int) -> bool:
    """Lock a range against readers, unless it has some; OSError without kernel support."""
    try:
        _set(fd, fcntl.F_WRLCK, offset, length)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


def is_unread(fd: int, offset: int, length: int) -> bool:
    """Whether no other open file description has locked a range; OSError as above."""
    if not lock_unread(fd, offset, length):
        return False
    unlock(fd, offset, length)
    return True


def is_locked(fd: int, offset: int = 0, length: int = 0) -> bool:
    """Whether another open file description has locked a part of a range; OSError as above.

    Without a length the range has no end.
    """
    asked = struct.pack(_FLOCK, fcntl.F_WRLCK, 0, offset, length, 0)
    kind: int = struct.unpack(_FLOCK, fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked))[0]
    return kind != fcntl.F_UNLCK


def punch(fd: int, offset: int, length: int) -> bool:
    """Release a range's memory or disk space; False, unchanged, if the file system cannot."""
    arguments = ctypes.c_int64(offset), ctypes.c_int64(length)
    return bool(_libc.fallocate(fd, _PUNCH_HOLE | _KEEP_SIZE, *arguments) == 0)
