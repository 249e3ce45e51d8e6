"""Finds the backends that work on this machine, importing each only when it is asked for."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import numpy as np

from dask_marsched.installation import __version__
from dask_marsched.kernels import cache_files
from dask_marsched.kernels.backend import Backend
from dask_marsched.kernels.llvm import processor

PACKAGES = {"llvm": "llvmlite"}  #: The package that a worker's kernels need


def make(directory: Path | None) -> tuple[Backend | None, dict[str, str]]:
    """Return the first backend that works here, and why those before it do not.

    The backend may keep compiled kernels in ``directory``.
    """
    missing: dict[str, str] = {}
    try:
        from dask_marsched.kernels.llvm.backend import LLVMBackend

        return LLVMBackend(directory), missing
    except Exception as error:  # not installed, or it does not work on this machine
        missing["llvm"] = f"{type(error).__name__}: {error}"
    try:
        from dask_marsched.kernels.numexpr_backend import NumexprBackend

        return NumexprBackend(), missing
    except Exception as error:
        missing["numexpr"] = f"{type(error).__name__}: {error}"
    return None, missing


def cache_directory(setting: str | None) -> Path | None:
    """Return the directory for compiled kernels and measurements; ``"auto"`` for the user's cache.

    Return None unless it is a directory that only this user may write to.
    """
    if setting is None:
        return None
    wanted = Path(setting)
    if setting == "auto":
        home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        wanted = Path(home) / "dask_marsched" / "kernels"
    try:
        return cache_files.private(wanted.expanduser())
    except RuntimeError:  # a user without a home, as in some containers
        return None


def identity() -> str:
    """Return, as text, the versions and the processor that measurements hold for."""
    runs_on = processor.description() or f"{platform.machine()} {platform.processor()}"
    return f"{__version__} numpy {np.__version__} {runs_on}"
