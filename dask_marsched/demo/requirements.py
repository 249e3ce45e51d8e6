"""Checks that packages, memory and disk suffice, before the demo writes or starts anything."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import click
import psutil
from dask.utils import format_bytes

from dask_marsched.demo.layout import Layout

MODULES = ("xarray", "zarr", "matplotlib")
PROCESSES_NBYTES = 8 * 150 * 2**20
"""Bytes of the worker processes of two clusters, with xarray and zarr imported."""
COPIES = 2
"""Copies of the data that the eddy fluxes may hold at once: values and deviations."""
RESOLUTIONS = (2.0, 3.0)
"""Degrees to try, the finer one first: chunks of 22 MiB, and of 10 MiB."""


def check_modules() -> None:
    """Raise a ClickException if an optional package is not installed."""
    missing = [name for name in MODULES if importlib.util.find_spec(name) is None]
    if missing:
        raise click.ClickException(
            f"The demo needs {', '.join(missing)}: run  pip install 'dask-marsched[demo]'"
        )


def layout_for(resolution: float | None, directory: Path) -> Layout:
    """Return the layout of a resolution in degrees, or the finest that memory and disk allow.

    Raises ValueError for a resolution that is not accepted, and a ClickException if memory or disk
    do not suffice even for the coarsest layout.
    """
    missing = ""
    for wanted in RESOLUTIONS if resolution is None else (resolution,):
        layout = Layout(wanted)
        missing = _missing(layout, directory)
        if not missing:
            return layout
    raise click.ClickException(missing)


def _missing(layout: Layout, directory: Path) -> str:
    needed = PROCESSES_NBYTES + COPIES * layout.nbytes
    available = psutil.virtual_memory().available
    if available < needed:
        return (
            f"At {layout.resolution} degrees the analyses need {format_bytes(needed)} of memory, "
            f"and {format_bytes(available)} are available: close other programs, or use a "
            "coarser --resolution"
        )
    free = shutil.disk_usage(directory).free
    if free < layout.nbytes:  # without compression
        return (
            f"The store needs up to {format_bytes(layout.nbytes)} on the disk of {directory}, "
            f"where {format_bytes(free)} are free: set TMPDIR to a directory on another disk, or "
            "use a coarser --resolution"
        )
    return ""
