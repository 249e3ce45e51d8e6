"""Groups operands with small results and equal large inputs, such as slices of a chunk.

One task then computes all results of a group (`host.graph.bundles`).
"""

from __future__ import annotations

from collections.abc import Sequence

from dask_marsched.core.graph import OperandGraph
from dask_marsched.policies.fusion import ALONE, CRUMB, FREE, GroupBounds
from dask_marsched.policies.planning.forecast import durations


def siblings(
    graph: OperandGraph, roles: Sequence[int], kinds: Sequence[int], limits: GroupBounds
) -> list[list[int]]:
    """Return groups of at least two operands, ascending, that run as one task.

    Siblings have equal inputs, at least one of them large, and a single reader each, which they
    cannot join, because that would move the inputs. Their results are small even together, so
    unneeded ones do no harm. Operands of unknown size or duration are left out.
    """
    nbytes, known, batches = graph.nbytes, graph.known, limits.batches
    starts, flat = graph.dependents.starts, graph.dependents.flat
    alike: dict[tuple[int, ...], list[int]] = {}
    for i, own in enumerate(graph.inputs):
        first = starts[i]
        if starts[i + 1] != first + 1 or not own or roles[i] != FREE:
            continue
        if not known[i] or nbytes[i] > CRUMB or (batches and batches[i] is not None):
            continue
        by = flat[first]
        if roles[by] == ALONE or kinds[by] != kinds[i]:
            continue
        if max([nbytes[j] for j in own]) > CRUMB:
            alike.setdefault((kinds[i], *own), []).append(i)
    found = [group for group in alike.values() if len(group) > 1]
    if not found:
        return []
    seconds = durations(graph, limits.made)
    slack = sum(seconds) / limits.groups
    return [part for group in found for part in _cut(group, nbytes, seconds, slack)]


def _cut(
    group: list[int], nbytes: Sequence[float], seconds: Sequence[float], slack: float
) -> list[list[int]]:
    """Split siblings into groups that stay small and lengthen the critical path by little."""
    parts: list[list[int]] = []
    held = spent = 0.0
    for i in group:
        if not parts or held + nbytes[i] > CRUMB or spent + seconds[i] > slack:
            parts.append([])
            held, spent = 0.0, -seconds[i]  # the first one adds no time
        parts[-1].append(i)
        held += nbytes[i]
        spent += seconds[i]
    return [part for part in parts if len(part) > 1]
