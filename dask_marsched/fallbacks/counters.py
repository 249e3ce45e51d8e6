"""What the plugin counts, for `status`, tests and whoever wonders."""

from __future__ import annotations

import logging
import traceback
from collections import Counter
from dataclasses import dataclass, field

logger = logging.getLogger("dask_marsched")


@dataclass
class Counters:
    """Counts since the plugin was started.

    Attributes
    ----------
    graphs_planned, operands_planned
        Graphs, and operands in them, that a plan was made for.
    exact_sizes
        Operands planned whose result's size was known exactly before they ran.
    replanned
        Plans made again, as sizes were learned or workers came.
    refined
        Plans replaced by what a search beside the event loop had found.
    recalled
        Plans remembered from a graph of the same structure.
    operands_placed
        Decisions for a worker that were ours.
    withheld
        How withheld operands came to their worker: ``own``, ``opened``, ``taken``.
    copies_dropped
        Copies of results that no task needed any more, dropped at once.
    retried
        Failures after which an operand is tried again.
    fused, fused_into
        Tasks that became part of others before they were scheduled, and of how many.
    left_to_dask
        Decisions left to Dask, by reason.
    exceptions
        Exceptions caught in our hooks, by hook; the decision was left to Dask.
    """

    graphs_planned: int = 0
    operands_planned: int = 0
    exact_sizes: int = 0
    operands_placed: int = 0
    replanned: int = 0
    refined: int = 0
    recalled: int = 0
    withheld: Counter[str] = field(default_factory=Counter)
    copies_dropped: int = 0
    retried: int = 0
    fused: int = 0
    fused_into: int = 0
    left_to_dask: Counter[str] = field(default_factory=Counter)
    exceptions: Counter[str] = field(default_factory=Counter)
    last_exception: str | None = None

    def caught(self, hook: str, error: Exception) -> None:
        """Count an exception of a hook, and log it with its cause the first time."""
        self.exceptions[hook] += 1
        self.last_exception = "".join(traceback.format_exception_only(error)).strip()
        if self.exceptions[hook] == 1:
            logger.error(
                "%s failed; the decision is left to Dask. Further failures of it are counted, "
                "not logged.",
                hook,
                exc_info=error,
            )
