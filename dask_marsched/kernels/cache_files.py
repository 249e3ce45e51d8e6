"""What is kept on disk between runs: machine code and measurements, for several writers."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
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
#: Our files, and what a writer that was killed has left.
_OURS = re.compile(r"[0-9a-f]{40}\.(o|json|lock|socket)|tmp\w+\.tmp")
#: Seconds for which nobody has used what is deleted; how many bytes are kept at most, and what each
#: file counts at least; seconds between two looks.
OLDEST, MOST_BYTES, _LEAST_BYTES = 30 * 86400.0, 128 << 20, 4096
_BETWEEN = 86400.0
_LOOKED = "pruned"


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
    if hashlib.sha256(content).digest() != found[:_DIGEST]:
        return None
    with contextlib.suppress(OSError):
        os.utime(path)  # it is of use: see `prune`
    return content


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


def prune(directory: Path, now: float | None = None) -> None:
    """Delete of our files those that nobody has used for long, and the eldest of too many.

    At most once a day, whichever process comes first. Others may read and write meanwhile: a file
    that they have opened stays theirs, and one that is gone is made again.

    Parameters
    ----------
    directory
        Made by `private`.
    now
        In seconds since 1970; None for the system's clock.
    """
    now = time.time() if now is None else now
    looked = directory / _LOOKED
    with contextlib.suppress(OSError):
        if 0 <= now - looked.stat().st_mtime < _BETWEEN:
            return
    with contextlib.suppress(OSError):
        looked.touch()
        os.utime(looked, (now, now))
        found: list[tuple[float, int, str]] = []
        with os.scandir(directory) as entries:
            for entry in entries:
                if _OURS.fullmatch(entry.name):
                    with contextlib.suppress(OSError):
                        about = entry.stat(follow_symlinks=False)
                        size = max(about.st_size, _LEAST_BYTES)
                        found.append((about.st_mtime, size, entry.path))
        left = MOST_BYTES
        for used, size, path in sorted(found, reverse=True):
            left -= size
            if left < 0 or now - used > OLDEST:
                with contextlib.suppress(OSError):
                    os.unlink(path)
