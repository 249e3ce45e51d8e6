"""What the demo needs of the machine, checked before anything is written or started."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import psutil
from dask.utils import format_bytes

from dask_marsched.demo.layout import Layout

MODULES = ("xarray", "zarr", "matplotlib")
WORKER_NBYTES = 300 * 2**20
"""Bytes of a worker process that has imported xarray and zarr and holds a few chunks."""
INTERMEDIATES = 2
"""Copies of one variable that the analyses may hold at once: the values, and a derived array."""


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


def check_disk(directory: Path, layout: Layout) -> None:
    """Check that the store fits on the disk.

    Parameters
    ----------
    directory : pathlib.Path
        Where the store will be; it need not exist yet.
    layout : Layout
        Size of the store. Compression is not counted on.

    Raises
    ------
    RequirementError
        If the disk has less free than the store may take.
    """
    existing = directory.absolute()
    while not existing.exists():
        existing = existing.parent
    free = shutil.disk_usage(existing).free
    if free < layout.nbytes:
        raise RequirementError(
            f"The store needs up to {format_bytes(layout.nbytes)} on the disk of {existing}, where "
            f"{format_bytes(free)} are free: use --store with a path on another disk, or fewer "
            "--years"
        )


def check_memory(layout: Layout, workers: int, memory_limit: int) -> None:
    """Check that the workers can hold what the analyses hold.

    Parameters
    ----------
    layout : Layout
        Size of the variables.
    workers : int
        Number of worker processes.
    memory_limit : int
        Bytes that a worker may use.

    Raises
    ------
    RequirementError
        If the machine's free memory or the workers' limits are too small.
    """
    needed = workers * WORKER_NBYTES + INTERMEDIATES * layout.variable_nbytes
    available = psutil.virtual_memory().available
    if available < needed:
        raise RequirementError(
            f"The analyses need about {format_bytes(needed)} of memory, and "
            f"{format_bytes(available)} are available: use fewer --years or --workers"
        )
    if workers * memory_limit < needed:
        raise RequirementError(
            f"The analyses need about {format_bytes(needed)} of memory, and {workers} workers of "
            f"{format_bytes(memory_limit)} have {format_bytes(workers * memory_limit)}: use a "
            "larger --memory-limit or fewer --years"
        )
