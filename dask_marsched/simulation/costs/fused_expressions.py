"""Lists the expressions of a computation that workers fuse, and what they cost on a cluster."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import distributed

from dask_marsched.host.kernels.task_runner import expressions
from dask_marsched.status import status


@dataclasses.dataclass(frozen=True)
class FusedExpression:
    """An expression that is evaluated in one pass if `marsched.fusion.kernels` is on."""

    text: str  #: Inputs and literals are a, b, c...
    tasks: int  #: Number of tasks that contain it.
    backends: tuple[str, ...] = ()  #: Those that workers have chosen for it so far.
    saved: float = 0.0  #: Seconds of processor time saved there so far.


def kernel_choices(client: distributed.Client | None) -> dict[str, tuple[tuple[str, ...], float]]:
    """Return the backends chosen by workers, and seconds saved, by expression."""
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
    """Return the expressions fused in tasks, the most frequent first; see `kernel_choices`."""
    return [
        FusedExpression(text, count, *known.get(text, ((), 0.0)))
        for text, count in expressions(tasks).items()
    ]
