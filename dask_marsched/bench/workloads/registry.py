"""Defines workloads and keeps the registry of them by name."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

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


def no_inputs(_: Parameters) -> tuple[()]:
    """Return the inputs of a workload that makes everything in its expression."""
    return ()


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
