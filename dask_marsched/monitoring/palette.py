"""Defines the colours of all pages, reports and figures, which colour-blind people can tell apart.

They are those of Okabe and Ito ("Color Universal Design", 2008). More than eight workers get a
scale of increasing lightness. Hatching marks failed and cancelled operands, so that no two states
differ by red and green alone.
"""

from __future__ import annotations

BLUE, ORANGE, GREEN, PINK = "#0072B2", "#E69F00", "#009E73", "#CC79A7"
SKY, RED, GREY, YELLOW = "#56B4E9", "#D55E00", "#999999", "#F0E442"
#: Okabe and Ito's, but for black, which is invisible on dark ground; yellow is last.
SET = (BLUE, ORANGE, GREEN, PINK, SKY, RED, GREY, YELLOW)
#: Operands that belong to no worker yet.
NOBODY = "#9A9A9A"
#: Text and lines that are legible on white and on black alike; on white only; and fainter ones.
INK, DARK_INK, FAINT_INK = "#767676", "#222222", "#777777"

#: By the name of an operand's state: colour, hatch pattern.
STATES: dict[str, tuple[str, str]] = {
    "unscheduled": ("#B0B0B0", "blank"),
    "ready": (ORANGE, "blank"),
    "running": (SKY, "blank"),
    "finished": (BLUE, "blank"),
    "freed": (GREEN, "blank"),
    "fatal": (RED, "cross"),
    "cancelled": (PINK, "right_diagonal_line"),
}
#: By the part of a worker's memory.
MEMORY = {"private": BLUE, "mapped": SKY, "shared": GREEN, "other": "#B0B0B0", "disk": PINK}
#: Stops of the scale: Viridis without its darkest and its lightest end.
_SCALE = ("#482878", "#3E4989", "#31688E", "#26828E", "#1F9E89", "#35B779", "#6DCD59", "#B4DE2C")


def colours(count: int) -> list[str]:
    """Return one colour for each of ``count`` workers."""
    if count <= len(SET):
        return list(SET[:count])
    return [_on_scale(i / (count - 1)) for i in range(count)]


def _on_scale(where: float) -> str:
    at = where * (len(_SCALE) - 1)
    i = min(int(at), len(_SCALE) - 2)
    low, high = (bytes.fromhex(_SCALE[k][1:]) for k in (i, i + 1))
    return (
        "#"
        + bytes(round(a + (b - a) * (at - i)) for a, b in zip(low, high, strict=True)).hex().upper()
    )
