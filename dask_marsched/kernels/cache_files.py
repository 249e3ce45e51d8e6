"""Reads, writes, locks and prunes the files of machine code and measurements in the cache.

Without a cache, paths are None: nothing is found, and nothing is written.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import locket

_DIGEST = 32
#: Seconds that a process waits for another one that writes the same file, and between two tries.
#: Then it writes the file itself, with the same content: the other one may have been stopped.
_PATIENCE, _RETRY = 2.0, 0.01
#: Our files, and temporary files of writers that were killed.
_OURS = re.compile(r"[0-9a-f]{40}\.(o|json|lock|socket)|tmp\w+\.tmp")
#: Seconds without use after which a file is deleted; bytes of all files, and of one at least.
OLDEST, MOST_BYTES, _LEAST_BYTES = 30 * 86400.0, 128 << 20, 4096
#: Seconds between two prunings, and the file whose time of modification is the last one's.
_BETWEEN = 86400.0
_PRUNED = "pruned"


def private(directory: Path) -> Path | None:
    """Return a directory, made if missing, that only this user may write to; None if impossible."""
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = directory.stat()
    except OSError:
        return None
    others = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)  # machine code is loaded from it
    return directory if found.st_uid == os.getuid() and not others else None


def path_of(text: str, directory: Path, suffix: str) -> Path:
    """Return the path of the file for something that a text describes."""
    return directory / f"{hashlib.sha256(text.encode()).hexdigest()[:40]}{suffix}"


def read(path: Path | None) -> bytes | None:
    """Return the content of a file; None if it is missing or damaged."""
    if path is None:
        return None
    try:
        found = path.read_bytes()
    except OSError:
        return None
    content = found[_DIGEST:]
    if hashlib.sha256(content).digest() != found[:_DIGEST]:
        return None
    with contextlib.suppress(OSError):
        os.utime(path)  # `prune` keeps files that are used
    return content


@contextlib.contextmanager
def claimed(path: Path | None) -> Iterator[None]:
    """Hold the lock of a file among the processes and threads of this host, for a while at most.

    The lock ends with its process, however that ends.
    """
    if path is None:
        yield
        return
    lock = locket.lock_file(path.with_suffix(".lock"), timeout=_PATIENCE, retry_period=_RETRY)
    try:
        lock.acquire()
    except (locket.LockError, OSError):  # another process is slow, or the file system has no locks
        yield
        return
    try:
        yield
    finally:
        lock.release()


def write(path: Path | None, content: bytes) -> None:
    """Write a file so that readers see all of it or nothing; do nothing if that fails."""
    if path is None:
        return
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
    """Delete our files that were not used for `OLDEST`, and the oldest beyond `MOST_BYTES`.

    The first process of a day does it. ``now`` is in seconds since 1970. A deleted file that other
    processes have opened stays readable, and is written again when it is needed.
    """
    now = time.time() if now is None else now
    pruned = directory / _PRUNED
    with contextlib.suppress(OSError):
        if 0 <= now - pruned.stat().st_mtime < _BETWEEN:
            return
    with contextlib.suppress(OSError):
        pruned.touch()
        os.utime(pruned, (now, now))
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
