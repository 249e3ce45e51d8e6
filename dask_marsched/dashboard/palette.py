"""Colours that those who do not see all colours tell apart, on light and on dark ground.

The first ones are Okabe and Ito's (2008, "Color Universal Design"). Where more are needed they are
taken from a scale in which each is lighter than the one before. No two states differ by red and
green alone: what failed or was cancelled is hatched, too.
"""

from __future__ import annotations

#: Okabe and Ito's, without black, which is not seen on dark ground, and with yellow last.
SET = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#999999", "#F0E442")
#: What belongs to no worker yet.
NOBODY = "#9A9A9A"
#: Text and lines that are legible on white and on black alike.
INK = "#767676"

#: By the name of an operand's state: colour, hatch pattern.
STATES: dict[str, tuple[str, str]] = {
    "unscheduled": ("#B0B0B0", "blank"),
    "ready": ("#E69F00", "blank"),
    "running": ("#56B4E9", "blank"),
    "finished": ("#0072B2", "blank"),
    "freed": ("#009E73", "blank"),
    "fatal": ("#D55E00", "cross"),
    "cancelled": ("#CC79A7", "right_diagonal_line"),
}
#: By the part of a worker's memory.
MEMORY = {
    "private": "#0072B2",
    "mapped": "#56B4E9",
    "shared": "#009E73",
    "other": "#B0B0B0",
    "disk": "#CC79A7",
}
#: Stops of the scale: Viridis without its darkest and its lightest end.
_SCALE = ("#482878", "#3E4989", "#31688E", "#26828E", "#1F9E89", "#35B779", "#6DCD59", "#B4DE2C")


def colours(count: int) -> list[str]:
    """Return so many colours for workers."""
    if count <= len(SET):
        return list(SET[:count])
    return [_on_scale(i / (count - 1)) for i in range(count)]


def _on_scale(where: float) -> str:
    at = where * (len(_SCALE) - 1)
    i = min(int(at), len(_SCALE) - 2)
    low, high = (_rgb(_SCALE[k]) for k in (i, i + 1))
    mixed = (round(a + (b - a) * (at - i)) for a, b in zip(low, high, strict=True))
    return "#" + "".join(f"{part:02X}" for part in mixed)


def _rgb(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)
