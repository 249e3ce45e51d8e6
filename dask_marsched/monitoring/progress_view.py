"""How `progress` looks: a line for terminals, a table for notebooks. Made of what it was told."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping
from typing import Any

from dask.utils import format_bytes

from dask_marsched.monitoring.palette import BLUE, GREY, ORANGE, PINK, RED, SKY

#: Shown in this order, the first ones from the left of the bar. Colours that the colour-blind tell
#: apart, on light and on dark (Okabe and Ito).
_COLOURS = {
    "finished": BLUE,
    "running": ORANGE,
    "ready": SKY,
    "waiting": GREY,
    "failed": RED,
    "given up": PINK,
}
#: Of the bar in a terminal.
_SIGNS = {"finished": "#", "running": "=", "ready": "-"}
_BAR = 20
#: What is said of each way to end.
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


def left_text(told: Mapping[str, Any]) -> str:
    """Return what is known of the time that is left."""
    if told["status"] == "expected":
        return "on the way to the scheduler"
    if told["status"] == "collected":
        return "being counted"
    if told["seconds"] is None:
        return f"time left unknown: {told['reason']}"
    text = duration(told["seconds"])
    if told["at_least"]:
        # Less than a second or more says nothing.
        return f"about {text} or more left" if told["seconds"] >= 1 else "time left unknown"
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
            # Rounded down: it is full only when all is finished.
            text += sign * (width * so_far // total - len(text))
    return text.ljust(width)


def line(told: Mapping[str, Any]) -> str:
    """Return the line for a terminal."""
    phases = told["phases"]
    counts = [
        f"{phase} {phases[phase]:,}"
        for phase in ("waiting", "ready", "running", "finished", "failed", "given up")
        if phases[phase] or phase not in ("failed", "given up")
    ]
    percent = math.floor(100 * share(phases))
    parts = [f"[{bar(phases)}] {percent:3d} %", left_text(told), ", ".join(counts)]
    if told["spilled"]:
        parts.append(f"{format_bytes(told['spilled'])} on disk")
    return " | ".join(parts)


def last_line(told: Mapping[str, Any]) -> str:
    """Return the line that stays when it has ended."""
    status = told["status"]
    if status == "nothing":
        return _ENDS[status]
    phases = told["phases"]
    done, total = phases["finished"], sum(phases.values())
    text = f"{_ENDS[status]}: {done:,} of {total:,} operands in {duration(told['elapsed'])}"
    if told["error"] is not None:
        key, error = told["error"]
        text += f"; {key}: {error}"
    return text


def is_ended(told: Mapping[str, Any]) -> bool:
    """Whether nothing more will be told."""
    return told["status"] in _ENDS


def to_html(told: Mapping[str, Any], *, by_kind: bool = True) -> str:
    """Return the table for a notebook; everything in it that others have named is escaped."""
    phases = told["phases"]
    head = last_line(told) if is_ended(told) else left_text(told)
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
    if told["spilled"]:
        legend += f" &nbsp; {format_bytes(told['spilled'])} on disk"
    rows = "".join(map(_row, told["kinds"])) if by_kind else ""
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
