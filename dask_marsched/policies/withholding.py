"""Defines withholding policies, which keep initial operands back until a worker has a free slot.

So downstream operands run first. `policies.unit_queues` is the default one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, runtime_checkable

from dask_marsched.policies.planning.host_shares import Share

#: Priority of an operand: user priority, generation of the graph, order. Lower runs first.
Priority = tuple[float, ...]
#: Bytes of an operand's inputs on a worker, and of all its inputs.
Locality = Callable[[Any, Any], tuple[float, float]]

#: Bytes of inputs that bind a withheld operand to their worker. Less is fetched in the time of a
#: message; the common case is the array object that all sources of a Zarr store read.
BINDING_BYTES = 64 * 2**10


@dataclass(frozen=True, slots=True)
class Offer:
    """An operand that a worker should run next."""

    operand: Any
    #: ``own`` (from a unit that the worker has opened), ``opened`` (the first of a new unit)
    #: or ``taken`` (from another worker's unit).
    how: str
    source: Any = field(repr=False, default=None)


@runtime_checkable
class WithholdingPolicy(Protocol):
    """Protocol of a withholding policy, which queues withheld operands."""

    #: Name for `status` and the configuration.
    name: ClassVar[str]

    def plan(
        self, operands: Iterable[Any], first: Priority, worker: Any | None, share: Share | None
    ) -> None:
        """Make a unit of operands.

        `first` is its priority and `worker` its planned worker. Units of one share belong on one
        host.
        """
        ...

    def planned(self, operand: Any) -> bool:
        """Whether an operand belongs to a unit."""
        ...

    def owner(self, operand: Any) -> Any | None:
        """Return the worker that has opened an operand's unit, or is planned for it."""
        ...

    def forget(self, operand: Any) -> None:
        """Drop an operand that will never run again."""
        ...

    def enqueue(self, operand: Any, priority: Priority, home: Any | None) -> None:
        """Withhold a ready operand. `home` is the worker that its inputs bind it to, or None."""
        ...

    def withdraw(self, operand: Any) -> None:
        """Remove an operand for any reason, if it is withheld."""
        ...

    def offer(self, worker: Any, locality: Locality) -> Offer | None:
        """Return what a worker with a free slot should run next. Changes nothing."""
        ...

    def begun(self) -> list[Any]:
        """Return the workers with withheld operands in opened units, the most urgent first."""
        ...

    def bound_alike(self, operand: Any) -> int:
        """Return about how many withheld operands belong on the worker of one; all if on none.

        They belong on the worker that has opened their unit, or holds its inputs.
        """
        ...

    def accept(self, offer: Offer, worker: Any) -> None:
        """Carry out an offer: the operand is sent to the worker."""
        ...

    def release(self, worker: Any) -> None:
        """Give up the units opened by a worker, because it left, paused or retires."""
        ...

    def locate(self, host_of: Mapping[Any, Any]) -> None:
        """Set the host of each worker, where several workers share a host."""
        ...

    def __len__(self) -> int:
        """Return the number of withheld operands."""
        ...
