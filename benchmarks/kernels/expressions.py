"""Expressions from real code, for the benchmark of fused kernels: of three arrays x, y, z."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np

Array = Any  # dask.array.Array

#: Those that numexpr, blocks and numba were first measured with.
DESIGN: dict[str, Callable[[Array, Array, Array], Array]] = {
    "rosenbrock": lambda x, y, z: (0.5 - x) ** 2 + 0.8 * (y - x**2) ** 2,
    "axpy": lambda x, y, z: 2 * x + y,
    "quotient": lambda x, y, z: (x - y) / z,
    "cubic": lambda x, y, z: 3 * x**3 + 2 * x**2 + x + 1,
    "index": lambda x, y, z: (x - y) / (x + y) * 0.5 + 0.25,
    "mixed": lambda x, y, z: ((x * 1.8 + 32) - y) * z / 2 + da.sqrt(x) - abs(y - z),
    "logarithm": lambda x, y, z: da.log(x / y + 1) + (z + 0.5 * x * x) * y / (x * da.sqrt(y) + 1),
    "waves": lambda x, y, z: da.exp(-x) * da.sin(y) + da.cos(z),
}


def _haversine(x: Array, y: Array, z: Array) -> Array:
    """Distance from a place (49 N, 8 E), km; x is a latitude, y a longitude, degrees."""
    lat, lon = da.radians(x), da.radians(y)
    a = da.sin((lat - 0.855) / 2) ** 2
    b = np.cos(0.855) * da.cos(lat) * da.sin((lon - 0.14) / 2) ** 2
    return 12742.0 * da.arcsin(da.sqrt(a + b))


def _dew_point(x: Array, y: Array, z: Array) -> Array:
    """Dew point by Magnus' formula; x in degrees Celsius, y a relative humidity (0 to 1)."""
    gamma = da.log(y) + 17.625 * x / (243.04 + x)
    return 243.04 * gamma / (17.625 - gamma)


def _cloud_free(x: Array, y: Array, z: Array) -> Array:
    """Brightness where no cloud is: bright in one band, dark in another."""
    return da.where((x > 1.2) & (y < 0.9), np.nan, x * 0.6 + y * 0.4)


#: Twelve more, as users write them.
REAL: dict[str, Callable[[Array, Array, Array], Array]] = {
    "ndvi": lambda x, y, z: (x - y) / (x + y),
    "evi": lambda x, y, z: 2.5 * (x - y) / (x + 6 * y - 7.5 * z + 10),
    "savi": lambda x, y, z: (x - y) / (x + y + 0.5) * 1.5,
    "fahrenheit": lambda x, y, z: (x - 273.15) * 9 / 5 + 32,
    "haversine": _haversine,
    "wind speed": lambda x, y, z: da.sqrt(x**2 + y**2 + z**2),
    "wind direction": lambda x, y, z: (270 - da.rad2deg(da.arctan2(x, y))) % 360,
    "normalised": lambda x, y, z: ((x - y) / z).clip(-3, 3),
    "calibration": lambda x, y, z: 0.12 + x * (1.04 + x * (-0.031 + x * (0.0042 + x * 0.0007))),
    "reflectance": lambda x, y, z: (x * 2.75e-5 - 0.2) * np.pi / (y * 0.985) + z * 0.01,
    "cloud mask": _cloud_free,
    "dew point": _dew_point,
}

EXPRESSIONS = {**DESIGN, **REAL}
