"""What the demo's store holds: its variables, its axes, and how they are cut into chunks."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

VARIABLES = {
    "t": ("air temperature at 850 hPa", "K"),
    "u": ("eastward wind at 850 hPa", "m s-1"),
    "v": ("northward wind at 850 hPa", "m s-1"),
}
STEPS_PER_DAY = 4
FIRST_DAY = "2001-01-01"
ITEMSIZE = 4
"""Bytes of a value: all fields are float32."""


@dataclass(frozen=True)
class Layout:
    """The size and the chunks of a store; two stores of equal layout hold equal values.

    Parameters
    ----------
    years : int
        Length of the time axis, in years of 365 days, four steps a day.
    resolution : float
        Distance of neighbouring grid points, in degrees; 180 must be a multiple of it.
    days_per_chunk : int
        Days in a chunk. A chunk spans the whole globe, as in the archives that are written as
        the model or the reanalysis runs.
    seed : int
        Seed of the weather.

    Raises
    ------
    ValueError
        If a value is out of range; the message names it and what is accepted.
    """

    years: int = 3
    resolution: float = 1.5
    days_per_chunk: int = 30
    seed: int = 20260801

    def __post_init__(self) -> None:
        if not 1 <= self.years <= 100:
            raise ValueError(f"years is {self.years}: accepted are 1 to 100")
        if not 0.25 <= self.resolution <= 45 or not _divides(self.resolution, 180):
            raise ValueError(
                f"resolution is {self.resolution}: accepted are 0.25 to 45 degrees, "
                "in a whole number of steps from pole to pole"
            )
        if not 1 <= self.days_per_chunk <= 365:
            raise ValueError(f"days_per_chunk is {self.days_per_chunk}: accepted are 1 to 365")

    @property
    def shape(self) -> tuple[int, int, int]:
        """Length of time, latitude and longitude."""
        half_turn = round(180 / self.resolution)
        return self.years * 365 * STEPS_PER_DAY, half_turn + 1, 2 * half_turn

    @property
    def chunks(self) -> tuple[int, int, int]:
        """Shape of a chunk (the last one in time may be shorter)."""
        steps, latitudes, longitudes = self.shape
        return min(steps, self.days_per_chunk * STEPS_PER_DAY), latitudes, longitudes

    @property
    def variable_nbytes(self) -> int:
        """Bytes of one variable, before compression."""
        return math.prod(self.shape) * ITEMSIZE

    @property
    def nbytes(self) -> int:
        """Bytes of all variables, before compression."""
        return len(VARIABLES) * self.variable_nbytes

    @property
    def chunk_nbytes(self) -> int:
        """Bytes of a chunk in memory."""
        return math.prod(self.chunks) * ITEMSIZE

    def to_json(self) -> dict[str, Any]:
        """Return the layout as it is noted in the store and in the JSON report."""
        return asdict(self)


def _divides(part: float, whole: float) -> bool:
    return abs(whole / part - round(whole / part)) < 1e-9
