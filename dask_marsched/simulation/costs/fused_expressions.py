"""Expressions of a computation that workers fuse, with what is known of them on a cluster."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import distributed

from dask_marsched.host.kernels.graph_expressions import expressions
from dask_marsched.status import status


@dataclasses.dataclass(frozen=True)
class FusedExpression:
    """An expression that is evaluated in one pass where `marsched.fusion.kernels` is on.

    Attributes
    ----------
    text : str
        The expression; inputs and literals are a, b, c...
    tasks : int
        Tasks that it is in.
    backends : tuple of str
        What workers of the cluster have chosen for it so far; none where they do not know it.
    saved : float
        Seconds of processor time that this has saved there so far.
    """

    text: str
    tasks: int
    backends: tuple[str, ...] = ()
    saved: float = 0.0


def kernel_choices(client: distributed.Client | None) -> dict[str, tuple[tuple[str, ...], float]]:
    """Return what workers have chosen, and seconds saved, by expression; empty if nobody tells."""
    if client is None or client.asynchronous:
        return {}
    chosen: dict[str, set[str]] = {}
    saved: dict[str, float] = {}
    for worker in status(client).workers.values():
        for one in (worker.get("kernels") or {}).get("expressions", ()):
            chosen.setdefault(one["text"], set()).add(one["backend"])
            saved[one["text"]] = saved.get(one["text"], 0.0) + one["saved"]
    return {text: (tuple(sorted(names)), saved[text]) for text, names in chosen.items()}


def fused_expressions(
    tasks: Iterable[Any], known: Mapping[str, tuple[tuple[str, ...], float]]
) -> list[FusedExpression]:
    """Return what is fused in some tasks, the most frequent first.

    Parameters
    ----------
    tasks
        Of the graph.
    known
        As `kernel_choices` returns it.
    """
    return [
        FusedExpression(text, count, *known.get(text, ((), 0.0)))
        for text, count in expressions(tasks).items()
    ]
