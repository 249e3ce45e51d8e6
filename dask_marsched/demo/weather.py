"""Generates the demo's fields: climate, seasons, days and weather, chunk by chunk.

All but the finest noise is separable: a few series over time times as many patterns over the globe.
So each chunk is one small matrix product, and chunks can be made in any order and thread.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dask_marsched.demo.layout import STEPS_PER_DAY, VARIABLES, Layout

Floats = npt.NDArray[np.float32]

SEED = 20260801
WEATHER_MODES = 12
MEMORY_DAYS = 4.0
"""E-folding time of the weather's modes."""


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
    """A variable of the store (a key of `VARIABLES`), as series over time and patterns in space."""

    def __init__(self, variable: str, layout: Layout) -> None:
        self._layout = layout
        climate = CLIMATES[variable]
        rng = np.random.default_rng((SEED, list(VARIABLES).index(variable)))
        self._series = _series(layout.shape[0], rng)
        self._patterns = _patterns(climate, layout, rng)
        # Drawn once, since drawing takes half of the time; each chunk starts at another offset.
        length = math.prod(layout.chunks)
        self._starts = rng.integers(0, length, -(-layout.shape[0] // layout.chunks[0]))
        self._noise = rng.standard_normal(2 * length, dtype=np.float32)
        self._noise *= np.float32(climate.noise)

    def chunk(self, index: int) -> Floats:
        """Return the values of the `index`-th chunk: float32 of (time, latitude, longitude)."""
        length, latitudes, longitudes = self._layout.chunks
        series = self._series[index * length : (index + 1) * length]
        values = series @ self._patterns
        start = self._starts[index]
        values += self._noise[start : start + values.size].reshape(values.shape)
        return values.reshape(len(series), latitudes, longitudes)


def _series(steps: int, rng: np.random.Generator) -> Floats:
    """Series over time: constant, season and day (two phases each), modes of weather."""
    day = np.arange(steps) / STEPS_PER_DAY
    year_angle, day_angle = 2 * np.pi * day / 365.25, 2 * np.pi * day
    modes = np.empty((steps, WEATHER_MODES))
    kicks = rng.standard_normal((steps, WEATHER_MODES))
    memory = np.exp(-1 / (STEPS_PER_DAY * MEMORY_DAYS))
    modes[0] = kicks[0]
    for step in range(1, steps):
        modes[step] = memory * modes[step - 1] + np.sqrt(1 - memory**2) * kicks[step]
    regular = [np.ones(steps), np.cos(year_angle), np.sin(year_angle)]
    regular += [np.cos(day_angle), np.sin(day_angle)]
    return np.column_stack([*regular, modes]).astype(np.float32)


def _patterns(climate: Climate, layout: Layout, rng: np.random.Generator) -> Floats:
    """Patterns over the globe, flattened, in the order of the series."""
    _, latitudes, longitudes = layout.shape
    north = np.linspace(np.pi / 2, -np.pi / 2, latitudes)[:, None]
    east = np.linspace(0, 2 * np.pi, longitudes, endpoint=False)[None, :]
    mean = climate.pole + (climate.equator - climate.pole) * np.cos(north) ** 2
    # Coldest in the north twenty days after New Year, and half a year later in the south.
    season = -climate.season * np.sin(north)
    lag = 2 * np.pi * 20 / 365.25
    # Warmest at three in the afternoon, local time.
    afternoon = 2 * np.pi * 15 / 24 - east
    day = climate.day * np.cos(north)
    patterns = [mean, season * np.cos(lag), season * np.sin(lag)]
    patterns += [day * np.cos(afternoon), day * np.sin(afternoon)]
    for _ in range(WEATHER_MODES):
        around, across = rng.integers(1, 9), rng.integers(1, 6)
        phase_east, phase_north = rng.uniform(0, 2 * np.pi, 2)
        wave = np.cos(around * east + phase_east) * np.cos(2 * across * north + phase_north)
        patterns.append(climate.weather * np.sqrt(2 / WEATHER_MODES) * np.cos(north) * wave)
    whole = [np.broadcast_to(pattern, (latitudes, longitudes)).ravel() for pattern in patterns]
    return np.stack(whole).astype(np.float32)
