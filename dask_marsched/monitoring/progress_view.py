"""Formats the progress of a computation: a line for terminals, a table for notebooks.

The argument `state` of the functions is as of `ProgressTracker.look`.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping
from typing import Any

from dask.utils import format_bytes

from dask_marsched.monitoring.palette import BLUE, GREY, ORANGE, PINK, RED, SKY

#: In the order of the bar. Colours that the colour-blind can tell apart, on light and dark (Okabe
#: and Ito).
_COLOURS = {
    "finished": BLUE,
    "running": ORANGE,
    "ready": SKY,
    "waiting": GREY,
    "failed": RED,
    "given up": PINK,
}
#: Characters and width of the bar in a terminal.
_SIGNS = {"finished": "#", "running": "=", "ready": "-"}
_BAR = 20
#: Text for each final status.
_ENDS = {
    "finished": "finished",
    "error": "failed",
    "cancelled": "cancelled",
    "lost": "the scheduler is lost",
    "stopped": "no longer watched; the computation goes on",
    "nothing": "nothing is being computed: persist it, or compute it with a client",
}


def duration(seconds: float) -> str:
    """Return seconds as a text for people: ``42 s``, ``3 min 20 s``, ``2 h 5 min``."""
    if seconds < 1:
        return "less than 1 s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 48 * 3600:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def left_text(state: Mapping[str, Any]) -> str:
    """Return the estimate of the time left."""
    if state["status"] == "expected":
        return "on the way to the scheduler"
    if state["status"] == "collected":
        return "being counted"
    if state["seconds"] is None:
        return f"time left unknown: {state['reason']}"
    text = duration(state["seconds"])
    if state["at_least"]:
        # "Less than a second or more" would be no information.
        return f"about {text} or more left" if state["seconds"] >= 1 else "time left unknown"
    return f"{'' if text.startswith('less') else 'about '}{text} left"


def share(phases: Mapping[str, int]) -> float:
    """Return the share of the operands that have a result."""
    total = sum(phases.values())
    return phases["finished"] / total if total else 0.0


def bar(phases: Mapping[str, int], width: int = _BAR) -> str:
    """Return a bar: ``#`` finished, ``=`` running, ``-`` ready, the rest empty."""
    total = sum(phases.values())
    text = ""
    if total:
        so_far = 0
        for phase, sign in _SIGNS.items():
            so_far += phases[phase]
            # Rounded down, so that it is full only when all operands are finished.
            text += sign * (width * so_far // total - len(text))
    return text.ljust(width)


def line(state: Mapping[str, Any]) -> str:
    """Return the line for a terminal."""
    phases = state["phases"]
    counts = [
        f"{phase} {count:,}"
        for phase, count in phases.items()
        if count or phase not in ("failed", "given up")
    ]
    percent = math.floor(100 * share(phases))
    parts = [f"[{bar(phases)}] {percent:3d} %", left_text(state), ", ".join(counts)]
    if state["spilled"]:
        parts.append(f"{format_bytes(state['spilled'])} on disk")
    return " | ".join(parts)


def last_line(state: Mapping[str, Any]) -> str:
    """Return the line for a computation that has ended."""
    status = state["status"]
    if status == "nothing":
        return _ENDS[status]
    phases = state["phases"]
    done, total = phases["finished"], sum(phases.values())
    text = f"{_ENDS[status]}: {done:,} of {total:,} operands in {duration(state['elapsed'])}"
    if state["error"] is not None:
        key, error = state["error"]
        text += f"; {key}: {error}"
    return text


def is_ended(state: Mapping[str, Any]) -> bool:
    """Whether the computation has ended, or is no longer watched."""
    return state["status"] in _ENDS


def to_html(state: Mapping[str, Any], *, by_kind: bool = True) -> str:
    """Return the table for a notebook; all names in it are escaped."""
    phases = state["phases"]
    head = last_line(state) if is_ended(state) else left_text(state)
    total = sum(phases.values())
    pieces = [
        f'<div title="{phase} {phases[phase]:,}" style="background:{colour};'
        f'width:{100 * phases[phase] / total:.3f}%"></div>'
        for phase, colour in _COLOURS.items()
        if phases[phase]
    ]
    legend = " &nbsp; ".join(
        f'<span style="color:{colour}">&#9632;</span> {phase} {phases[phase]:,}'
        for phase, colour in _COLOURS.items()
        if phases[phase] or phase not in ("failed", "given up")
    )
    if state["spilled"]:
        legend += f" &nbsp; {format_bytes(state['spilled'])} on disk"
    rows = "".join(map(_row, state["kinds"])) if by_kind else ""
    return (
        f"<div><b>{html.escape(head)}</b> &nbsp; {math.floor(100 * share(phases))} % "
        f"of {total:,} operands</div>"
        f'<div style="display:flex;height:0.8em;margin:0.3em 0;background:rgba(128,128,128,0.25)">'
        f"{''.join(pieces)}</div><div>{legend}</div>"
        + (f"<table>{_HEAD}{rows}</table>" if rows else "")
    )


_HEAD = "<tr><th>kind</th><th>finished</th><th>of</th><th>running</th><th>failed</th></tr>"


def _row(kind: Mapping[str, Any]) -> str:
    name = html.escape(kind["name"])
    numbers = "".join(
        f"<td>{kind[what]:,}</td>" for what in ("finished", "total", "running", "failed")
    )
    return f'<tr><td style="text-align:left">{name}</td>{numbers}</tr>'
