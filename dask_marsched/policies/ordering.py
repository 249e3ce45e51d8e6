"""Orders ready operands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol, runtime_checkable

from dask_marsched.core.graph import OperandGraph, depths


@runtime_checkable
class OrderingPolicy(Protocol):
    """Protocol of an ordering policy."""

    #: Name for `status` and the configuration.
    name: ClassVar[str]

    def order(self, graph: OperandGraph) -> Sequence[int] | None:
        """Return the operands' numbers in order of execution; None keeps Dask's order.

        User priorities and the order of graphs always take precedence.
        """
        ...


class DaskOrder:
    """The order of ``dask.order`` (the default)."""

    name: ClassVar[str] = "dask"

    def order(self, graph: OperandGraph) -> None:
        """Keep the order (`OrderingPolicy.order`)."""
        return


class MarsOrder:
    """Mars' order: deeper operands first, then those with deeper dependents, then smaller results.

    Source: the Mars project's published scheduling policy ("operand selection").
    """

    name: ClassVar[str] = "mars"

    def order(self, graph: OperandGraph) -> Sequence[int]:
        """Return the operands by depth, depth of their dependents, and size."""
        depth = depths(graph)
        needed_by = [max((depth[d] for d in ds), default=-1) for ds in graph.dependents]
        return sorted(graph, key=lambda i: (-depth[i], -needed_by[i], graph.nbytes[i], i))
