"""The backends by name, each imported only where it is used."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from pathlib import Path

import numpy as np

from dask_marsched.installation import __version__
from dask_marsched.kernels import cache_files
from dask_marsched.kernels.backend import Backend
from dask_marsched.kernels.llvm import processor


def _llvm(directory: Path | None) -> Backend:
    from dask_marsched.kernels.llvm.backend import LLVMBackend

    return LLVMBackend(directory)


def _blocks(_: Path | None) -> Backend:
    from dask_marsched.kernels.blocks_backend import BlocksBackend

    return BlocksBackend()


def _numexpr(_: Path | None) -> Backend:
    from dask_marsched.kernels.numexpr_backend import NumexprBackend

    return NumexprBackend()


_MAKERS: dict[str, Callable[[Path | None], Backend]] = {
    "llvm": _llvm,
    "blocks": _blocks,
    "numexpr": _numexpr,
}
#: What has to be installed for some of them.
PACKAGES = {"llvm": "llvmlite", "numexpr": "numexpr"}


def make(directory: Path | None) -> tuple[list[Backend], dict[str, str]]:
    """Return backends, and why those that are missing cannot be used here.

    Parameters
    ----------
    directory
        Where they may keep what they compile; None for nowhere.
    """
    found: list[Backend] = []
    missing: dict[str, str] = {}
    for name, maker in _MAKERS.items():
        try:
            found.append(maker(directory))
        except Exception as error:  # not installed, or it does not work on this machine
            missing[name] = f"{type(error).__name__}: {error}"
    return found, missing


def cache_directory(setting: str | None) -> Path | None:
    """Return where code and measurements are kept.

    Parameters
    ----------
    setting
        A path; ``"auto"`` for the user's cache; None for nowhere.

    Returns
    -------
    Path or None
        None also if there is no such directory that only this user may write to.
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
    """Return what measurements depend on, as text."""
    runs_on = processor.description() or f"{platform.machine()} {platform.processor()}"
    return f"{__version__} numpy {np.__version__} {runs_on}"
