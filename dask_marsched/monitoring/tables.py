"""Makes the figures and tables that both the dashboard's pages and the reports show."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from dask.utils import format_bytes, format_time

from dask_marsched.monitoring.html import Markup, element, table

#: Operations of a loss that are named.
_MOST_GROUPS = 3


def count(value: float | None, what: str = "") -> str:
    """Return a count for people, empty for None, with the plural of its noun unless it is one."""
    if value is None:
        return ""
    text = f"{int(value):,}"
    return f"{text} {what}{'' if value == 1 else 's'}" if what else text


def size(value: float | None) -> str:
    """Return bytes for people, empty for None."""
    return "" if value is None else format_bytes(round(value))


def seconds(value: float) -> str:
    """Return seconds for people; they may be negative."""
    text = format_time(abs(value)).strip() if abs(value) >= 1e-3 else f"{abs(value) * 1e3:.2g} ms"
    return f"-{text}" if value < 0 else text


def causes(found: Iterable[Mapping[str, Any]]) -> Markup:
    """Return a table of `Causes.to_list`."""
    rows = [(c["state"], count(c["count"]), c["operand"], c["cause"]) for c in found]
    return table(("state", "operands", "began with", "cause"), rows, (1,))


def expressions(found: Iterable[Mapping[str, Any]]) -> Markup:
    """Return a table of the expressions of `Observer.kernels`."""
    header = (
        "",
        "expression",
        "dtypes",
        "by",
        "chunks",
        "saved",
        "compiling",
        "gave up",
        "workers",
    )
    rows = [
        (
            i + 1,
            element("code", one["text"]),
            one["dtypes"],
            one["backend"],
            count(one["runs"]),
            seconds(one["saved"]),
            seconds(one["compiled"]),
            one["given_up"] or "",
            count(one["workers"]),
        )
        for i, one in enumerate(found)
    ]
    return table(header, rows, (0, 4, 5, 6, 7, 8))


def losses(found: Iterable[Mapping[str, Any]], when: str, moment: Callable[[float], str]) -> Markup:
    """Return a table of lost workers, of `Recoveries.report`; ``when`` heads the times."""
    counts = {
        "adopted": "adopted by others",
        "lost": "lost",
        "again": "computed again",
        "interrupted": "sent again",
        "excess": "more than needed",
    }
    rows = [
        (
            moment(one["time"]),
            one["worker"],
            *(count(one[name]) for name in counts),
            "not yet" if one["seconds"] is None else seconds(one["seconds"]),
            ", ".join(f"{name} {n}" for name, n in list(one["groups"].items())[:_MOST_GROUPS]),
        )
        for one in found
    ]
    header = (when, "worker", *counts.values(), "recovered after", "computed again, of")
    return table(header, rows, range(2, 8))
