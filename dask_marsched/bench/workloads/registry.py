"""What a workload is, and the registry of them by name."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

MIB = 2**20
FLOAT = 8  # bytes of a float64, the element of every array here


class Kind(Enum):
    """What a workload is there to show.

    Attributes
    ----------
    DATA
        Chunks of real size: bytes moved, memory and time all matter.
    OVERHEAD
        Thousands of tasks that do next to nothing: only the time a task costs matters.
    ELEMENTWISE
        Arithmetic over arrays in memory: only time matters. Run where they are named.
    PRODUCTS
        Everything meets everything, what tiles are for. Run where they are named.
    INTERACTIVE
        What somebody at a keyboard waits for; only time matters. Run where they are named.
    """

    DATA = "data"
    OVERHEAD = "overhead"
    ELEMENTWISE = "elementwise"
    PRODUCTS = "products"
    INTERACTIVE = "interactive"

    @property
    def by_name(self) -> bool:
        """Whether these run only where they are named."""
        return self in (Kind.ELEMENTWISE, Kind.PRODUCTS, Kind.INTERACTIVE)


@dataclass(frozen=True)
class Parameters:
    """How large a workload is to be.

    Attributes
    ----------
    size : float
        Factor on the number of chunks; 1 is the size of the published table.
    chunk_bytes : int
        Size of the typical chunk, bytes.
    scratch : Path or None
        A directory for the stores of workloads which read from disk.
    """

    size: float = 1.0
    chunk_bytes: int = 8 * MIB
    scratch: Path | None = None

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
        """Chunks along the one dimension that grows; ``base`` of them at size 1, at least 2."""
        return max(2, round(base * self.size))

    def grid(self, base: int) -> int:
        """Chunks along each of two dimensions that grow together; at least 2."""
        return max(2, round(base * math.sqrt(self.size)))


@dataclass(frozen=True)
class Workload:
    """A named program of Dask's collections.

    Attributes
    ----------
    name : str
        Name on the command line.
    summary : str
        One line for the lists and the docs.
    inputs : callable
        ``inputs(parameters)`` returns the tuple of collections that the program starts from.
    expression : callable
        ``expression(parameters, *inputs)`` returns the collections to compute, as a tuple. Array
        expressions accept numpy arrays as inputs as well.
    persist : bool
        The inputs are persisted first, and the expression is a second graph built on them.
    held_out : bool
        Never used to tune a constant.
    kind : Kind
        What it is there to show.
    requires : tuple of str
        Modules besides dask that it needs.
    needs_cluster : bool
        It cannot run on Dask's local schedulers.
    """

    name: str
    summary: str
    inputs: Callable[[Parameters], tuple[Any, ...]]
    expression: Callable[..., tuple[Any, ...]]
    persist: bool = False
    held_out: bool = False
    kind: Kind = Kind.DATA
    requires: tuple[str, ...] = field(default=())
    needs_cluster: bool = False

    def missing(self) -> tuple[str, ...]:
        """Modules that this workload needs and this environment lacks."""
        return tuple(name for name in self.requires if importlib.util.find_spec(name) is None)

    def build(self, parameters: Parameters) -> tuple[Any, ...]:
        """Return the collections to compute, inputs and expression in one graph."""
        return self.expression(parameters, *self.inputs(parameters))


_registry: dict[str, Workload] = {}


def register(workload: Workload) -> Workload:
    """Add a workload to the registry.

    Raises
    ------
    ValueError
        If the name is taken.
    """
    if workload.name in _registry:
        raise ValueError(f"a workload named {workload.name!r} is registered already")
    _registry[workload.name] = workload
    return workload


def names(held_out: bool | None = False) -> tuple[str, ...]:
    """Names in the order of registration.

    Parameters
    ----------
    held_out : bool or None
        False for those in general use, True for the held-out ones, None for all there are.
    """
    return tuple(
        w.name
        for w in _registry.values()
        if held_out is None or (w.held_out is held_out and not w.kind.by_name)
    )


def get(name: str) -> Workload:
    """Return the workload of that name.

    Raises
    ------
    ValueError
        If there is none; the message lists the names there are.
    """
    try:
        return _registry[name]
    except KeyError:
        accepted = ", ".join(names(held_out=None))
        raise ValueError(f"no workload named {name!r}; accepted: {accepted}") from None


def select(chosen: Iterable[str] = (), held_out: bool = False) -> tuple[Workload, ...]:
    """Return the workloads named, or all of a set where none is.

    Raises
    ------
    ValueError
        If a name is unknown.
    """
    wanted = tuple(chosen) or names(held_out)
    return tuple(get(name) for name in wanted)
