"""Locks byte ranges of a file against other processes, and gives their space back.

The kernel drops such a lock with the last process that holds it, however that ended.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import struct

# struct flock: type, whence, start, length, and a process id that has to be 0 for these
_FLOCK = "hhqqi0q"
_libc = ctypes.CDLL(None, use_errno=True)
_PUNCH_HOLE, _KEEP_SIZE = 0x02, 0x01


def _set(fd: int, kind: int, offset: int, length: int) -> None:
    # An open file description owns the lock, not the process: two openings in one process
    # exclude each other, and closing another descriptor of the file drops nothing.
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack(_FLOCK, kind, 0, offset, length, 0))


def lock_read(fd: int, offset: int, length: int) -> None:
    """Lock a part against its reuse.

    Raises
    ------
    OSError
        If its owner is about to reuse it.
    """
    _set(fd, fcntl.F_RDLCK, offset, length)


def unlock(fd: int, offset: int, length: int) -> None:
    """Drop the locks that this open file description has on a part."""
    _set(fd, fcntl.F_UNLCK, offset, length)


def is_unread(fd: int, offset: int, length: int) -> bool:
    """Tell whether no other open file description has a lock on a part.

    Raises
    ------
    OSError
        If the kernel has no such locks.
    """
    try:
        _set(fd, fcntl.F_WRLCK, offset, length)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    unlock(fd, offset, length)
    return True


def has_readers(fd: int) -> bool:
    """Tell whether any other open file description has a lock anywhere; it takes none itself.

    Raises
    ------
    OSError
        If the kernel has no such locks.
    """
    asked = struct.pack(_FLOCK, fcntl.F_WRLCK, 0, 0, 0, 0)
    kind: int = struct.unpack(_FLOCK, fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked))[0]
    return kind != fcntl.F_UNLCK


def punch(fd: int, offset: int, length: int) -> bool:
    """Give the memory or disk space of a part of a file back.

    Returns
    -------
    bool
        False if the file system cannot. The part is as it was then, and can still be reused.
    """
    arguments = ctypes.c_int64(offset), ctypes.c_int64(length)
    return bool(_libc.fallocate(fd, _PUNCH_HOLE | _KEEP_SIZE, *arguments) == 0)
