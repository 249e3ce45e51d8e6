"""Combines the partial results of reductions in little memory: Dask's own, and flox's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dask_marsched.host.kernels import grouped_results, partial_results
from dask_marsched.host.kernels.grouped_results import GroupedCombination
from dask_marsched.host.kernels.partial_results import Combination

#: What a task combines.
Combining = Combination | GroupedCombination


def combination(node: Any) -> Combining | None:
    """Return what a task combines; None if its function or arguments are not of a known form."""
    return partial_results.combination(node) or grouped_results.combination(node)


def combine(node: Any, found: Combining, values: Mapping[Any, Any]) -> Callable[[], Any]:
    """Return what finishes a task that combines results, given its inputs by key.

    Raises UnfitError if the task has to be run as it is, and FloatingPointError if NumPy would
    warn. Errors of what is returned are the task's.
    """
    if isinstance(found, GroupedCombination):
        return grouped_results.combine(node, found, values)
    result = partial_results.combine(node, found, values)
    return lambda: result
