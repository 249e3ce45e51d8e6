"""Counts what the plugin does, for `status` and reports."""

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
        Graphs that were planned, and the operands in them.
    exact_sizes
        Planned operands whose result's size was known exactly before they ran.
    operands_placed
        Tasks sent to a worker that the plugin has chosen.
    replanned
        Plans made again, as sizes were learned or workers joined.
    refined
        Plans replaced by the result of a search in a thread.
    recalled
        Plans reused from a graph of the same structure.
    withheld
        Withheld operands that were sent, by origin: of the worker's ``own`` units, of a unit
        ``opened`` for it, or ``taken`` from another worker's unit.
    copies_dropped
        Unneeded replicas that were dropped.
    retried
        Failures after which an operand is retried.
    fused, fused_into
        Tasks that were fused before they were scheduled, and the number of fused tasks.
    left_to_dask
        Decisions left to Dask, by reason.
    exceptions
        Exceptions caught in the plugin's hooks, by hook; Dask decided instead.
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
        """Count an exception of a hook, and log the first one with its traceback."""
        self.exceptions[hook] += 1
        self.last_exception = "".join(traceback.format_exception_only(error)).strip()
        if self.exceptions[hook] == 1:
            logger.error(
                "%s failed; the decision is left to Dask. Further failures of it are counted, "
                "not logged.",
                hook,
                exc_info=error,
            )
