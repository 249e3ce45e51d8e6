"""Shows the status of the plugin as HTML in notebooks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dask_marsched.monitoring.html import Markup, element, table
from dask_marsched.monitoring.status_text import PARTS, part_text, scheduler_facts

#: Workers that a notebook shows; ``str()`` of a status shows all.
MOST_WORKERS = 50

_MUTED: Mapping[str, object] = {"style": "opacity:.75"}


def status_view(status: Mapping[str, Any]) -> Markup:
    """Return `Status.to_dict` as HTML: the scheduler, then a row for each worker."""
    state = "active" if status["active"] else "not active"
    parts: list[object] = [
        element("div", element("strong", "dask_marsched"), f" on {status['scheduler']}: {state}"),
        table((), list(scheduler_facts(status))),
    ]
    workers = list(_workers(status))
    if workers:
        rows = workers[:MOST_WORKERS]
        used = [name for name in ("worker", *PARTS, "off") if any(row.get(name) for row in rows)]
        parts.append(table(used, [[row.get(name, "") for name in used] for row in rows]))
        if len(workers) > MOST_WORKERS:
            more = f"and {len(workers) - MOST_WORKERS} workers more: print(status) shows them"
            parts.append(element("div", more, attributes=_MUTED))
    return element("div", *parts)


def _workers(status: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    for address, report in status["workers"].items():
        off = "; ".join(f"{part}: {why}" for part, why in report["reasons"].items())
        parts = {part: part_text(part, report) for part in PARTS}
        yield {"worker": address, "off": off, **parts}
    for address, off_there in status["workers_lacking"].items():
        yield {
            "worker": address,
            "off": f"not installed; off: {', '.join(off_there) or 'nothing'}",
        }
    for address, why in status["unreachable"].items():
        yield {"worker": address, "off": f"not reached: {why}"}
