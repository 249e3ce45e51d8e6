"""The outcome of an analysis under stock Dask and under the plugin, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from dask_marsched.bench.metrics import Measurement, ratio


@dataclass(frozen=True)
class Comparison:
    """One analysis: what it cost with stock Dask and with the plugin.

    Attributes
    ----------
    name, title : str
        Of the analysis; `title` is for people.
    stock, marsched : Measurement
        What was measured.
    equal : bool
        Whether the two results are equal bit for bit.
    """

    name: str
    title: str
    stock: Measurement
    marsched: Measurement
    equal: bool

    def ratio(self, quantity: str) -> float | None:
        """Return the plugin's part of stock's `quantity`; None where stock's is 0 or unknown."""
        return ratio(getattr(self.marsched, quantity), getattr(self.stock, quantity))

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict, in bytes and seconds, with the ratios to stock."""
        return {
            "analysis": self.name,
            "equal": self.equal,
            "stock": self._values(self.stock),
            "marsched": self._values(self.marsched),
            "ratios": {quantity.name: self.ratio(quantity.name) for quantity in QUANTITIES},
        }

    def _values(self, measurement: Measurement) -> dict[str, Any]:
        return {quantity.name: getattr(measurement, quantity.name) for quantity in QUANTITIES}


class Quantity(NamedTuple):
    """A measured quantity: its attribute of `Measurement`, its title and how it is written."""

    name: str
    title: str
    unit: str
    scale: float
    digits: int

    def text(self, value: float) -> str:
        """Return a value (in bytes or seconds) as digits in the quantity's unit."""
        return f"{value / self.scale:,.{self.digits}f}"


QUANTITIES = (
    Quantity("moved", "moved between workers", "MiB", 2**20, 0),
    Quantity("managed", "peak of results held", "MiB", 2**20, 0),
    Quantity("pss", "peak memory of processes", "MiB", 2**20, 0),
    Quantity("seconds", "wall time", "s", 1, 1),
)


def known_quantities(comparisons: Sequence[Comparison]) -> list[Quantity]:
    """Return the quantities that were measured for all: PSS is known on Linux only."""
    measurements = [m for c in comparisons for m in (c.stock, c.marsched)]
    return [q for q in QUANTITIES if all(getattr(m, q.name) is not None for m in measurements)]


def same_values(one: xr.Dataset, other: xr.Dataset) -> bool:
    """Tell whether two results are equal bit for bit: names, types, axes and values.

    NaN equals NaN. There is no tolerance: the same operations on the same chunks give the same
    bits wherever they run.
    """
    if set(one.variables) != set(other.variables):
        return False
    pairs = [(one[name].variable, other[name].variable) for name in one.variables]
    return all(
        a.dims == b.dims
        and a.dtype == b.dtype
        and np.array_equal(a.to_numpy(), b.to_numpy(), equal_nan=True)
        for a, b in pairs
    )
