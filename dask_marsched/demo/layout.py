"""Defines the size and the chunks of the demo's store."""

from __future__ import annotations

import math
from dataclasses import dataclass

#: Names of the store's fields, all float32: air temperature, and the wind to the east and north.
VARIABLES = ("t", "u", "v")
STEPS_PER_DAY = 24
_ITEMSIZE = 4


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
