"""Builds HTML from Python values, escaping all text that is not `Markup`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

#: A line that is visible on light and on dark backgrounds.
_LINE = "1px solid rgba(128,128,128,.4)"
_CELL = f"text-align:left;padding:.15em .6em;border-bottom:{_LINE};vertical-align:top"
_NUMBER = _CELL.replace("text-align:left", "text-align:right;white-space:nowrap")


class Markup(str):
    """Text that is HTML already, and not to be escaped."""

    __slots__ = ()


def text(value: object) -> Markup:
    """Return a value as HTML: `Markup` unchanged, other values escaped."""
    return value if isinstance(value, Markup) else Markup(escape(str(value)))


def element(name: str, *content: object, attributes: Mapping[str, object] | None = None) -> Markup:
    """Return an element with its content; attributes with value None are omitted."""
    given = "".join(
        f' {key}="{escape(str(value))}"'
        for key, value in (attributes or {}).items()
        if value is not None
    )
    return Markup(f"<{name}{given}>{''.join(map(text, content))}</{name}>")


def joined(parts: Iterable[object]) -> Markup:
    """Concatenate parts."""
    return Markup("".join(map(text, parts)))


def table(
    header: Sequence[object], rows: Iterable[Sequence[object]], numbers: Iterable[int] = ()
) -> Markup:
    """Return a table; the columns with an index in `numbers` are aligned to the right."""
    right = set(numbers)

    def line(name: str, row: Sequence[object]) -> Markup:
        styles = [_NUMBER if i in right else _CELL for i in range(len(row))]
        cells = zip(row, styles, strict=True)
        return element("tr", *(element(name, c, attributes={"style": s}) for c, s in cells))

    head = element("thead", line("th", header)) if header else ""
    body = element("tbody", *(line("td", row) for row in rows))
    return element("table", head, body, attributes={"style": "border-collapse:collapse"})
