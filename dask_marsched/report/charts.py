"""Draws SVG charts, coloured by classes of the page (``c0`` to ``c7``) to follow its theme."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dask_marsched.monitoring.html import Markup, element
from dask_marsched.report.style import COLOURS

WIDTH, HEIGHT = 760, 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 66, 10, 10, 34
#: Least end of an axis: smaller steps would be subnormal numbers.
_LEAST_END = 1e-300
_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")

Line = tuple[str, Sequence[float | None], str]


def byte_scale(most: float) -> tuple[float, str]:
    """Return the bytes of the unit that suits values up to `most`, and its name."""
    power = 0
    while most >= 1024 ** (power + 1) and power + 1 < len(_BYTE_UNITS):
        power += 1
    return 1024.0**power, _BYTE_UNITS[power]


def ticks(most: float, count: int = 4) -> list[float]:
    """Return round numbers from 0 to at least `most`, about `count` steps."""
    if not most > _LEAST_END:
        return [0.0, 1.0]
    rough = most / count
    base = 10.0 ** math.floor(math.log10(rough))
    step = next(base * m for m in (1, 2, 5, 10) if base * m >= rough * (1 - 1e-9))
    return [i * step for i in range(math.ceil(most / step - 1e-9) + 1)]


def lines(
    times: Sequence[float], drawn: Sequence[Line], unit: str, limits: Mapping[str, float]
) -> Markup:
    """Return lines over time (seconds, from 0), with ``limits`` marked by name."""
    known = [v for _, values, _ in drawn for v in values if v is not None]
    frame = _Frame(times, max([*known, *limits.values(), 0.0]), unit)
    parts = frame.axes()
    for name, level in limits.items():
        y = frame.y(level)
        parts += [_across(y, "limit"), _label(name, WIDTH - _RIGHT - 4, f"{y - 4:.1f}", "end")]
    for name, values, style in drawn:
        points = zip(times, values, strict=True)
        d = _path([(frame.x(t), frame.y(v)) for t, v in points if v is not None])
        parts.append(_shape(name, d, f"line {style}"))
    return _figure(parts, [(name, style) for name, _, style in drawn])


def layers(times: Sequence[float], drawn: Sequence[Line], unit: str) -> Markup:
    """Return values over time, one on top of the other; see `lines`."""
    below = [0.0] * len(times)
    tops: list[list[float]] = []
    for _, values, _ in drawn:
        below = [b + (v or 0.0) for b, v in zip(below, values, strict=True)]
        tops.append(below)
    frame = _Frame(times, max(below, default=0.0), unit)
    parts = frame.axes()
    floor = [0.0] * len(times)
    for (name, _, style), top in zip(drawn, tops, strict=True):
        if top != floor:
            upper = [(frame.x(t), frame.y(v)) for t, v in zip(times, top, strict=True)]
            lower = [(frame.x(t), frame.y(v)) for t, v in zip(times, floor, strict=True)]
            d = _path([*upper, *reversed(lower)]) + "Z"
            parts.append(_shape(name, d, f"area {style}"))
        floor = top
    return _figure(parts, [(name, style) for name, values, style in drawn if any(values)])


def bars(rows: Sequence[tuple[str, float, str, str]], unit: str, most: float) -> Markup:
    """Return a bar for each row: its name, value, class, and the text beside it."""
    height = 26 * len(rows) + 8
    width = WIDTH - 300
    parts = []
    for i, (name, value, style, text) in enumerate(rows):
        y = 6 + 26 * i
        length = max(1.0, width * value / most) if most else 1.0
        box = {"x": 158, "y": y, "width": f"{length:.1f}", "height": 18, "class": f"area {style}"}
        title = element("title", f"{name}: {text}")
        parts += [
            _label(name, 150, y + 14, "end"),
            element("rect", title, attributes=box),
            _label(text, f"{164 + length:.1f}", y + 14, None),
        ]
    return _svg(parts, height, unit)


def plan(picture: Mapping[str, Any]) -> Markup:
    """Return the cells of `Observer.plan`, coloured by worker."""
    columns, rows = max(1, picture["columns"]), max(1, picture["rows"])
    names, cells = picture["workers"], picture["cells"]
    dx, height = (WIDTH - _LEFT - _RIGHT) / columns, HEIGHT * 1.4
    dy = (height - _TOP - _BOTTOM) / rows
    # Small cells have no gaps, which would hide them, and lie on whole pixels.
    gap = min(2.0, dx * 0.15), min(2.0, dy * 0.15) if dy > 4 else 0.0
    shape = "area" if gap[1] else "area crisp"
    shapes: dict[int, list[str]] = {}
    w, h = dx - gap[0], min(dy - gap[1], dx * 1.5)
    for column, row, worker in zip(cells["column"], cells["row"], cells["worker"], strict=True):
        x, y = _LEFT + column * dx, _TOP + row * dy
        shapes.setdefault(worker, []).append(f"M{x:.1f} {y:.1f}h{w:.1f}v{h:.1f}h-{w:.1f}z")
    parts, legend = [], []
    for worker, drawn in sorted(shapes.items()):
        name = names[worker] if worker >= 0 else "on no worker"
        style = f"c{worker % COLOURS}" if worker >= 0 else "none"
        parts.append(_shape(name, "".join(drawn), f"{shape} {style}"))
        legend.append((name, style))
    below = "depth in the graph (inputs left, results right)"
    parts.append(_label(below, (WIDTH + _LEFT) / 2, f"{height - 8:.0f}"))
    parts.append(_upright("units of the plan", height))
    if len(legend) > COLOURS + 1:
        legend = [*legend[: COLOURS + 1], (f"and {len(legend) - COLOURS - 1} more", "none")]
    return _figure(parts, legend, height)


class _Frame:
    """The axes of a chart over time."""

    def __init__(self, times: Sequence[float], most: float, unit: str) -> None:
        if unit == "bytes":
            self._per, self._unit = byte_scale(most)
        else:
            self._per, self._unit = 1.0, unit
        self._up = ticks(most / self._per)
        self._along = ticks(max(times, default=0.0), 6)
        self._last = max(times, default=0.0) or 1.0

    def x(self, time: float) -> float:
        return _LEFT + (WIDTH - _LEFT - _RIGHT) * time / self._last

    def y(self, value: float) -> float:
        return HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * value / self._per / self._up[-1]

    def axes(self) -> list[Markup]:
        parts = [_upright(self._unit, HEIGHT)]
        for value in self._up:
            y = self.y(value * self._per)
            parts += [_across(y, "grid"), _label(f"{value:g}", _LEFT - 6, f"{y + 4:.1f}", "end")]
        for value in self._along:
            if value <= self._last * (1 + 1e-9):
                parts.append(_label(f"{value:g}", f"{self.x(value):.1f}", HEIGHT - 18))
        return [*parts, _label("seconds", (WIDTH + _LEFT) / 2, HEIGHT - 3)]


def _label(text: str, x: object, y: object, anchor: str | None = "middle") -> Markup:
    return element("text", text, attributes={"x": x, "y": y, "text-anchor": anchor})


def _across(y: float, style: str) -> Markup:
    at = f"{y:.1f}"
    ends = {"x1": _LEFT, "x2": WIDTH - _RIGHT, "y1": at, "y2": at, "class": style}
    return element("line", attributes=ends)


def _shape(title: str, d: str, style: str) -> Markup:
    return element("path", element("title", title), attributes={"d": d, "class": style})


def _upright(text: str, height: float) -> Markup:
    y = f"{(height - _BOTTOM) / 2:.0f}"
    attributes = {"transform": f"translate(14 {y}) rotate(-90)", "text-anchor": "middle"}
    return element("text", text, attributes=attributes)


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points) if points else ""


def _svg(parts: Sequence[Markup], height: float, label: str) -> Markup:
    attributes = {"viewBox": f"0 0 {WIDTH} {height:.0f}", "role": "img", "aria-label": label}
    return element("svg", *parts, attributes=attributes)


def _figure(
    parts: Sequence[Markup], legend: Sequence[tuple[str, str]], height: float = HEIGHT
) -> Markup:
    names = ", ".join(name for name, _ in legend)
    keys = [
        element("span", element("i", attributes={"class": f"key {style}"}), name)
        for name, style in legend
    ]
    shown = element("div", *keys, attributes={"class": "legend"}) if keys else ""
    return element("figure", _svg(parts, height, names), shown)
