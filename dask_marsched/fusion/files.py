"""What is kept on disk between runs: machine code and measurements, for several writers."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

_DIGEST = 32
#: Seconds that a process waits for another one that makes the same file, and between two looks.
#: It may have been stopped; both may make it, it is the same.
_PATIENCE, _LOOK = 2.0, 0.01


def private(directory: Path) -> Path | None:
    """Return a directory that nobody else may write to, made where there is none.

    Machine code is loaded from it.

    Returns
    -------
    Path or None
        None if there is no such directory, and it cannot be made.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = directory.stat()
    except OSError:
        return None
    others = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return directory if found.st_uid == os.getuid() and not others else None


def read(path: Path) -> bytes | None:
    """Return what a file holds; None if it is not there or not whole."""
    try:
        found = path.read_bytes()
    except OSError:
        return None
    content = found[_DIGEST:]
    return content if hashlib.sha256(content).digest() == found[:_DIGEST] else None


@contextlib.contextmanager
def claimed(path: Path) -> Iterator[None]:
    """Be the only process on this host that makes a file, or wait for the one that does.

    The claim ends with the process, however it ends.
    """
    if sys.platform == "win32":
        yield
        return
    import fcntl

    try:
        handle = os.open(path.with_suffix(".lock"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:
        yield
        return
    try:
        waited = 0.0
        while waited < _PATIENCE:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(_LOOK)
                waited += _LOOK
            except OSError:  # not on this file system
                break
        yield
    finally:
        os.close(handle)


def write(path: Path, content: bytes) -> None:
    """Write a file so that others see all of it or nothing; where it fails, there is none."""
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    except OSError:
        return
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(hashlib.sha256(content).digest() + content)
        os.replace(temporary, path)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
