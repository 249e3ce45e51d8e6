"""Element-wise arithmetic over arrays in memory, which fused kernels speed up."""

from __future__ import annotations

from typing import Any

from dask_marsched.bench.workloads.arrays import random_grid
from dask_marsched.bench.workloads.registry import Kind, Parameters, register

Array = Any  # dask.array.Array, or numpy.ndarray where a test computes the reference


def _bands(parameters: Parameters) -> tuple[Array, ...]:
    """Return three bands of an image, values between 0.5 and 1.5."""
    rows = parameters.count(24)
    return tuple(random_grid(parameters, seed, rows, 1) + 0.5 for seed in (51, 52, 53))


def _vegetation(_: Parameters, red: Array, near: Array, blue: Array) -> tuple[Array, ...]:
    return ((2.5 * (near - red) / (near + 6 * red - 7.5 * blue + 10)).mean(axis=0),)


def _calibration(_: Parameters, x: Array, y: Array, z: Array) -> tuple[Array, ...]:
    return ((0.12 + x * (1.04 + x * (-0.031 + x * (0.0042 + x * 0.0007)))).std(),)


def _rosenbrock(_: Parameters, x: Array, y: Array, z: Array) -> tuple[Array, ...]:
    return (((0.5 - x) ** 2 + 0.8 * (y - x**2) ** 2).max(),)


for _name, _summary, _expression in (
    ("vegetation", "an enhanced vegetation index, its mean over one axis", _vegetation),
    ("calibration", "a polynomial of degree four, its standard deviation", _calibration),
    ("rosenbrock", "Rosenbrock's function, its maximum", _rosenbrock),
):
    register(_name, _summary, _bands, _expression, persist=True, kind=Kind.ELEMENTWISE)
