"""Siblings: small results that are made of the same large inputs become one operand.

The slices of a chunk that its neighbours need, or what is summed up of a pair of blocks and of
its mirror image: each is a task, and none can join the one that reads it, as that would move
what it is made of. Together they are one task, whose result is hardly larger than one of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from dask_marsched.core.graph import OperandGraph
from dask_marsched.policies.compression import ALONE, CRUMB, FREE, GroupBounds, durations


def siblings(
    graph: OperandGraph, roles: Sequence[int], kinds: Sequence[int], limits: GroupBounds
) -> list[list[int]]:
    """Decide which operands become one whose result holds theirs.

    Each of them is small, is read by a single operand, and reads what the others do, of which
    something is not small (else they can join who reads them). Their results together are still
    small, so that it does no harm where some of them are not needed; and the path through the
    graph does not grow by more than its bound. Operands of unknown size or duration are left out.

    Parameters
    ----------
    graph, roles, kinds, limits
        See `dask_marsched.policies.compression.compress`.

    Returns
    -------
    list of lists of int
        At least two operands each, ascending.
    """
    nbytes, readers = graph.nbytes, graph.dependents
    alike: dict[tuple[int, ...], list[int]] = {}
    for i, own in enumerate(graph.inputs):
        if not own or roles[i] != FREE or not graph.known[i] or nbytes[i] > CRUMB:
            continue
        if limits.batches and limits.batches[i] is not None:
            continue
        by = readers[i]
        if len(by) != 1 or roles[by[0]] == ALONE or kinds[by[0]] != kinds[i]:
            continue
        if max([nbytes[j] for j in own]) > CRUMB:
            alike.setdefault((kinds[i], *own), []).append(i)
    found = [group for group in alike.values() if len(group) > 1]
    if not found:
        return []
    seconds = durations(graph)
    slack = sum(seconds) / limits.groups
    return [part for group in found for part in _cut(group, nbytes, seconds, slack)]


def _cut(
    group: list[int], nbytes: Sequence[float], seconds: Sequence[float], slack: float
) -> list[list[int]]:
    """Cut siblings into those that are small together, and take no longer than the bound."""
    parts: list[list[int]] = []
    held = spent = 0.0
    for i in group:
        if not parts or held + nbytes[i] > CRUMB or spent + seconds[i] > slack:
            parts.append([])
            held, spent = 0.0, -seconds[i]  # the first one takes its time anyway
        parts[-1].append(i)
        held += nbytes[i]
        spent += seconds[i]
    return [part for part in parts if len(part) > 1]
