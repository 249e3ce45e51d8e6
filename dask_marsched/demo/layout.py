"""Defines the size and the chunks of the demo's store, and checks that memory and disk suffice."""

from __future__ import annotations

import math
import shutil
from dataclasses import dataclass
from pathlib import Path

import click
import psutil
from dask.utils import format_bytes

#: Names of the store's fields, all float32: air temperature, and the wind to the east and north.
VARIABLES = ("t", "u", "v")
STEPS_PER_DAY = 24
_ITEMSIZE = 4
PROCESSES_NBYTES = 8 * 150 * 2**20
"""Bytes of the worker processes of two clusters, with xarray and zarr imported."""
COPIES = 2
"""Copies of the data that the eddy fluxes may hold at once: values and deviations."""
RESOLUTIONS = (2.0, 3.0)
"""Degrees to try, the finer one first: chunks of 22 MiB, and of 10 MiB."""


@dataclass(frozen=True)
class Layout:
    """The size and the chunks of a store; two stores of equal layout hold equal values.

    Raises ValueError, which names the accepted resolutions.
    """

    resolution: float = 2.0  #: distance of grid points in degrees, a divisor of 180
    days: int = 365  #: length of the time axis, in hourly steps
    days_per_chunk: int = 15  #: a chunk spans the whole globe

    def __post_init__(self) -> None:
        steps = 180 / self.resolution if self.resolution > 0 else 0.0
        if not 0.25 <= self.resolution <= 45 or abs(steps - round(steps)) > 1e-9:
            raise ValueError(
                f"resolution is {self.resolution}: accepted are 0.25 to 45 degrees, "
                "in a whole number of steps from pole to pole"
            )

    @property
    def shape(self) -> tuple[int, int, int]:
        """Length of time, latitude and longitude."""
        half_turn = round(180 / self.resolution)
        return self.days * STEPS_PER_DAY, half_turn + 1, 2 * half_turn

    @property
    def chunks(self) -> tuple[int, int, int]:
        """Shape of a chunk (the last one in time may be shorter)."""
        steps, latitudes, longitudes = self.shape
        return min(steps, self.days_per_chunk * STEPS_PER_DAY), latitudes, longitudes

    @property
    def nbytes(self) -> int:
        """Bytes of all variables, before compression."""
        return len(VARIABLES) * math.prod(self.shape) * _ITEMSIZE

    @property
    def chunk_nbytes(self) -> int:
        """Bytes of a chunk in memory."""
        return math.prod(self.chunks) * _ITEMSIZE


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
