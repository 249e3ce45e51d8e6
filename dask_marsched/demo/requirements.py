"""What the demo needs of the machine, checked before anything is written or started."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import psutil
from dask.utils import format_bytes

from dask_marsched.demo.layout import Layout

MODULES = ("xarray", "zarr", "matplotlib")
PROCESSES_NBYTES = 8 * 150 * 2**20
"""Bytes of two clusters' worker processes that have imported xarray and zarr."""
COPIES = 2
"""Copies of the data that the eddy fluxes may hold at once: the values, and their deviations."""
RESOLUTIONS = (2.0, 3.0)
"""What is tried, the finer one first: chunks of 22 MiB, and of 10 MiB for little memory."""


class RequirementError(Exception):
    """The demo cannot run here; the message says what is missing and what helps."""


def check_modules() -> None:
    """Check that the optional packages are installed.

    Raises
    ------
    RequirementError
        If one is not; the message names it and the extra that brings it.
    """
    missing = [name for name in MODULES if importlib.util.find_spec(name) is None]
    if missing:
        raise RequirementError(
            f"The demo needs {', '.join(missing)}: run  pip install 'dask-marsched[demo]'"
        )


def layout_for(resolution: float | None, directory: Path) -> Layout:
    """Return the layout of that resolution, or the finest one that memory and disk allow.

    Parameters
    ----------
    resolution : float or None
        In degrees, as the user wishes; None to choose.
    directory : pathlib.Path
        Where the store will be; it need not exist yet.

    Raises
    ------
    ValueError
        If the resolution is not accepted.
    RequirementError
        If the machine has too little memory or disk even for the coarsest that may be chosen.
    """
    missing = ""
    for wanted in RESOLUTIONS if resolution is None else (resolution,):
        layout = Layout(wanted)
        missing = _missing(layout, directory)
        if not missing:
            return layout
    raise RequirementError(missing)


def _missing(layout: Layout, directory: Path) -> str:
    needed = PROCESSES_NBYTES + COPIES * layout.nbytes
    available = psutil.virtual_memory().available
    if available < needed:
        return (
            f"At {layout.resolution} degrees the analyses need {format_bytes(needed)} of memory, "
            f"and {format_bytes(available)} are available: close other programs, or use a "
            "coarser --resolution"
        )
    existing = directory.absolute()
    while not existing.exists():
        existing = existing.parent
    free = shutil.disk_usage(existing).free
    if free < layout.nbytes:  # compression is not counted on
        return (
            f"The store needs up to {format_bytes(layout.nbytes)} on the disk of {existing}, where "
            f"{format_bytes(free)} are free: use --store with a path on another disk, or a "
            "coarser --resolution"
        )
    return ""
