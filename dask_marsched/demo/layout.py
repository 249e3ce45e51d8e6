"""Defines the variables, axes, chunks and values of the demo's store."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

VARIABLES = {
    "t": ("air temperature at 850 hPa", "K"),
    "u": ("eastward wind at 850 hPa", "m s-1"),
    "v": ("northward wind at 850 hPa", "m s-1"),
}
STEPS_PER_DAY = 24
FIRST_DAY = "2001-01-01"
ITEMSIZE = 4
"""Bytes of a value: all fields are float32."""


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
        return len(VARIABLES) * math.prod(self.shape) * ITEMSIZE

    @property
    def chunk_nbytes(self) -> int:
        """Bytes of a chunk in memory."""
        return math.prod(self.chunks) * ITEMSIZE


SEED = 20260801
WAVES = 12
"""Number of waves that make up the weather."""


class Climate(NamedTuple):
    """Amplitudes of a variable, in its unit."""

    equator: float
    pole: float
    season: float
    day: float
    weather: float
    noise: float


CLIMATES = {
    "t": Climate(equator=292, pole=250, season=14, day=2.5, weather=4.0, noise=0.5),
    "u": Climate(equator=-4, pole=6, season=3, day=0.5, weather=5.0, noise=0.8),
    "v": Climate(equator=0, pole=0, season=1, day=0.5, weather=5.0, noise=0.8),
}


class Field:
    """A variable of the store (a key of `VARIABLES`), as series over time and patterns in space.

    Each chunk is one small matrix product plus noise, and can be made in any order and thread.
    """

    def __init__(self, variable: str, layout: Layout) -> None:
        self._layout = layout
        climate = CLIMATES[variable]
        rng = np.random.default_rng((SEED, list(VARIABLES).index(variable)))
        steps, latitudes, longitudes = layout.shape
        angle = 2 * np.pi * np.arange(steps)[:, None] / STEPS_PER_DAY
        north = np.linspace(np.pi / 2, -np.pi / 2, latitudes)[:, None]
        east = np.linspace(0, 2 * np.pi, longitudes, endpoint=False)
        afternoon = 2 * np.pi * 15 / 24 - east  # warmest at three, local time
        period, phase = rng.uniform(8, 40, WAVES), rng.uniform(0, 2 * np.pi, (WAVES, 1, 1))
        around, across = rng.integers(1, 9, phase.shape), rng.integers(1, 6, phase.shape)
        waves = np.cos(around * east + phase) * np.cos(2 * across * north)
        # Coldest in the north twenty days after New Year, and half a year later in the south.
        year = np.cos((angle - 2 * np.pi * 20) / 365.25)
        day = np.hstack([np.cos(angle), np.sin(angle)])
        weather = np.cos(angle / period + phase[:, 0, 0])
        self._series = np.hstack([angle**0, year, day, weather]).astype(np.float32)
        patterns = [
            climate.pole + (climate.equator - climate.pole) * np.cos(north) ** 2 + 0 * east,
            -climate.season * np.sin(north) + 0 * east,
            climate.day * np.cos(north) * np.cos(afternoon),
            climate.day * np.cos(north) * np.sin(afternoon),
            *(climate.weather * np.sqrt(4 / WAVES) * np.cos(north) * waves),
        ]
        self._patterns = np.stack(patterns).reshape(len(patterns), -1).astype(np.float32)
        # Drawn once, since drawing takes half of the time; each chunk starts at another offset.
        length = math.prod(layout.chunks)
        self._starts = rng.integers(0, length, -(-steps // layout.chunks[0]))
        self._noise = rng.standard_normal(2 * length, dtype=np.float32)
        self._noise *= np.float32(climate.noise)

    def chunk(self, index: int) -> npt.NDArray[np.float32]:
        """Return the values of the `index`-th chunk: float32 of (time, latitude, longitude)."""
        length, latitudes, longitudes = self._layout.chunks
        series = self._series[index * length : (index + 1) * length]
        values = series @ self._patterns
        start = self._starts[index]
        values += self._noise[start : start + values.size].reshape(values.shape)
        return values.reshape(len(series), latitudes, longitudes)
