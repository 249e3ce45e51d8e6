"""Counts what the plugin does, for `status` and reports."""

from __future__ import annotations

import logging
import traceback
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

logger = logging.getLogger("dask_marsched")


@dataclass
class Counters:
    """Counts since the plugin was started.

    Of the counted operands, `exact_sizes` had a result of known size before they ran. Plans are
    `replanned` as sizes are learned or workers join, and `refined` by a search in a thread;
    `plans_reused` counts those of an earlier graph of the same structure. `withheld` counts by
    origin: the worker's ``own`` units, a unit ``opened`` for it, or ``taken`` from another
    worker's. `left_to_dask` counts by reason, `exceptions` by hook.
    """

    graphs_planned: int = 0
    operands_planned: int = 0
    exact_sizes: int = 0
    operands_placed: int = 0
    replanned: int = 0
    refined: int = 0
    plans_reused: int = 0
    withheld: Counter[str] = field(default_factory=Counter)
    copies_dropped: int = 0
    retried: int = 0
    fused: int = 0
    fused_into: int = 0
    left_to_dask: Counter[str] = field(default_factory=Counter)
    exceptions: Counter[str] = field(default_factory=Counter)
    last_exception: str | None = None

    def failures(self) -> dict[str, Any]:
        """Return the exceptions by hook, and the last one, as plain values for JSON."""
        return {"exceptions": dict(self.exceptions), "last_exception": self.last_exception}

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
