"""Registers named workloads: arithmetic and reductions for which stock Dask moves many bytes."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np

MIB = 2**20
FLOAT = 8  # bytes of a float64, the element of every array here


class Kind(Enum):
    """What a workload measures."""

    DATA = "data"  #: chunks of real size: bytes moved, memory and time all matter
    OVERHEAD = "overhead"  #: thousands of tiny tasks: only the scheduler's time per task matters
    ELEMENTWISE = "elementwise"  #: arithmetic over arrays in memory: only time matters
    PRODUCTS = "products"  #: every chunk meets every other, which tiling serves
    INTERACTIVE = "interactive"  #: small results that a person waits for: only time matters
    HELD_OUT = "held out"  #: like DATA, but never used to tune a constant


GENERAL = (Kind.DATA, Kind.OVERHEAD)  #: The kinds that run unless workloads are named


@dataclass(frozen=True)
class Parameters:
    """The size of a workload."""

    size: float = 1.0  #: factor on the number of chunks; 1 is that of the published table
    chunk_bytes: int = 8 * MIB  #: of the typical chunk
    scratch: Path | None = None  #: directory for workloads that read from disk

    def __post_init__(self) -> None:
        if not self.size > 0:
            raise ValueError(f"size must be a number above 0, not {self.size!r}")
        if self.chunk_bytes < FLOAT * 16:
            raise ValueError(
                f"chunk_bytes must be at least {FLOAT * 16} bytes, not {self.chunk_bytes!r}"
            )

    @property
    def elements(self) -> int:
        """Float64 elements in a chunk."""
        return self.chunk_bytes // FLOAT

    @property
    def side(self) -> int:
        """Side of a square chunk, elements."""
        return math.isqrt(self.elements)

    def count(self, base: int) -> int:
        """Return the chunks along the one dimension that grows: ``base`` at size 1, at least 2."""
        return max(2, round(base * self.size))

    def grid(self, base: int) -> int:
        """Return the chunks along each of two dimensions that grow together; at least 2."""
        return max(2, round(base * math.sqrt(self.size)))


@dataclass(frozen=True)
class Workload:
    """A named program of Dask's collections."""

    name: str
    summary: str  #: one line for the lists and the docs
    #: Returns the collections that the program starts from.
    inputs: Callable[[Parameters], tuple[Any, ...]]
    #: Returns the collections to compute, given the inputs: collections or numpy arrays.
    expression: Callable[..., tuple[Any, ...]]
    persist: bool = False  #: the inputs first; the expression is a second graph built on them
    kind: Kind = Kind.DATA
    requires: tuple[str, ...] = ()  #: modules besides dask that it needs
    needs_cluster: bool = False  #: it cannot run on Dask's local schedulers

    def missing(self) -> tuple[str, ...]:
        """Return the modules that this workload needs and this environment lacks."""
        return tuple(name for name in self.requires if importlib.util.find_spec(name) is None)

    def build(self, parameters: Parameters) -> tuple[Any, ...]:
        """Return the collections to compute, inputs and expression in one graph."""
        return self.expression(parameters, *self.inputs(parameters))


_registry: dict[str, Workload] = {}


def register(
    name: str,
    summary: str,
    inputs: Callable[[Parameters], tuple[Any, ...]],
    expression: Callable[..., tuple[Any, ...]],
    **options: Any,
) -> None:
    """Add a workload with the parameters of `Workload`; ValueError if the name is taken."""
    if name in _registry:
        raise ValueError(f"a workload named {name!r} is registered already")
    _registry[name] = Workload(name, summary, inputs, expression, **options)


def names(kinds: Iterable[Kind] = GENERAL) -> tuple[str, ...]:
    """Return the names of the workloads of some kinds, in the order of registration."""
    wanted = frozenset(kinds)
    return tuple(name for name, workload in _registry.items() if workload.kind in wanted)


def get(name: str) -> Workload:
    """Return a workload by name. If there is none, a ValueError lists all names."""
    try:
        return _registry[name]
    except KeyError:
        accepted = ", ".join(_registry)
        raise ValueError(f"no workload named {name!r}; accepted: {accepted}") from None


def select(chosen: Iterable[str] = (), kinds: Iterable[Kind] = GENERAL) -> tuple[Workload, ...]:
    """Return the named workloads, or all of some kinds; ValueError for unknown names."""
    return tuple(get(name) for name in tuple(chosen) or names(kinds))


Array = Any  # dask.array.Array, or numpy.ndarray where a test computes the reference


def random_grid(parameters: Parameters, seed: int, rows: int, columns: int) -> Array:
    """Return a seeded array of ``rows`` x ``columns`` square chunks."""
    side = parameters.side
    generator = da.random.default_rng(seed)
    return generator.random((rows * side, columns * side), chunks=(side, side))


def random_series(parameters: Parameters, seed: int, steps: int, pieces: int = 1) -> Array:
    """Return a seeded array (time, y, x), one chunk a time step, or ``pieces`` of them along y."""
    side = parameters.side
    generator = da.random.default_rng(seed)
    return generator.random((steps, pieces * side, side), chunks=(1, side, side))


def _square(seeds: tuple[int, ...], base: int) -> Any:
    def inputs(parameters: Parameters) -> tuple[Array, ...]:
        n = parameters.grid(base)
        return tuple(random_grid(parameters, seed, n, n) for seed in seeds)

    return inputs


def _series(seeds: tuple[int, ...], base: int, pieces: int = 1) -> Any:
    def inputs(parameters: Parameters) -> tuple[Array, ...]:
        steps = parameters.count(base)
        return tuple(random_series(parameters, seed, steps, pieces) for seed in seeds)

    return inputs


def thin_columns(parameters: Parameters) -> tuple[Array]:
    """Return columns one element thick, each a chunk of half the usual size."""
    rows = parameters.elements // 2
    ones = da.ones((rows, parameters.count(256)), chunks=(rows, 1))
    return (ones.map_blocks(np.copy),)


def concatenate(parts: list[Array], axis: int) -> Array:
    """Concatenate dask arrays, or numpy arrays in a reference."""
    lazy = any(isinstance(part, da.Array) for part in parts)
    return (da if lazy else np).concatenate(parts, axis=axis)


def forward_difference(field: Array, axis: int) -> Array:
    """Return the difference to the next point along a periodic axis, in the field's chunks.

    The wrapped element is appended and merged into the last chunk, as grid libraries do at a
    boundary. Nearly nothing is rechunked, but the graph is no longer blockwise.
    """
    first = field[tuple(slice(0, 1) if i == axis else slice(None) for i in range(field.ndim))]
    padded = concatenate([field, first], axis=axis)
    if isinstance(padded, da.Array):
        chunks = list(field.chunks)
        chunks[axis] = (*chunks[axis][:-1], chunks[axis][-1] + 1)
        padded = padded.rechunk(tuple(chunks))
    later = padded[tuple(slice(1, None) if i == axis else slice(None) for i in range(field.ndim))]
    return later - field


def _vorticity(_: Parameters, u: Array, v: Array, dx: Array, dy: Array) -> tuple[Array]:
    curl = forward_difference(v, 2) / dy - forward_difference(u, 1) / dx
    return (curl.mean(axis=(1, 2)),)


def _vorticity_inputs(parameters: Parameters) -> tuple[Array, ...]:
    steps = parameters.count(24)
    u, v = (random_series(parameters, seed, steps, pieces=2) for seed in (31, 32))
    dx, dy = (random_grid(parameters, seed, 2, 1) + 1.0 for seed in (33, 34))
    return u, v, dx, dy


def _quadratic(_: Parameters, u: Array, v: Array) -> tuple[Array, ...]:
    return (u * u).mean(axis=0), (v * v).mean(axis=0), (u * v).mean(axis=0)


def _standardise(_: Parameters, x: Array) -> tuple[Array]:
    return (abs((x - x.mean(axis=0)) / x.std(axis=0)).mean(axis=(1, 2)),)


register(
    "thin-column-sum",
    "sum over columns one element thick: every partial result is as large as a chunk",
    thin_columns,
    lambda _, x: (x.sum(axis=1),),
)
register(
    "binary-mean",
    "(a + b).mean(): two sources that meet chunk by chunk (dask/distributed 6597)",
    _square((11, 12), 8),
    lambda _, a, b: ((a + b).mean(),),
)
register(
    "shifted-difference",
    "a[1:, 1:] - b[:-1, :-1]: sources that meet in pieces of neighbouring chunks",
    _square((13, 14), 8),
    lambda _, a, b: ((a[1:, 1:] - b[:-1, :-1]).mean(),),
)
register(
    "vorticity",
    "curl of a flow with padded boundaries and shared grid metrics (dask/distributed 6571)",
    _vorticity_inputs,
    _vorticity,
)
register(
    "gram-matrix",
    "(a @ a.T).sum(): every row of chunks meets every other",
    _square((15,), 5),
    lambda _, a: ((a @ a.T).sum(),),
)
register(
    "add-transpose",
    "(x + x.T).mean(): chunks mirrored at the diagonal meet",
    _square((16,), 10),
    lambda _, x: ((x + x.T).mean(),),
)
register(
    "quadratic-means",
    "means over time of u*u, v*v and u*v at once",
    _series((17, 18), 64),
    _quadratic,
)
register(
    "anomaly",
    "((x - x.mean(0))**2).mean(0): the source is needed again once its mean is known",
    _series((19,), 80),
    lambda _, x: (((x - x.mean(axis=0)) ** 2).mean(axis=0),),
)
register(
    "standardise",
    "(x - mean) / std over time, in several pieces of space",
    _series((20,), 10, pieces=4),
    _standardise,
)
