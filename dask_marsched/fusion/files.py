"""What is kept on disk between runs: machine code and measurements, for several writers."""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from pathlib import Path

_DIGEST = 32


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
