"""Renders sections of paragraphs and tables as text for a terminal or as HTML for a notebook."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Iterable

from dask_marsched.monitoring.html import Markup, element, table

_WIDTH = 96

Row = tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of the page: a table, then paragraphs."""

    title: str
    header: Row = ()
    rows: tuple[Row, ...] = ()
    paragraphs: tuple[str, ...] = ()


def text_page(sections: Iterable[Section]) -> str:
    """Return the page for a terminal."""
    lines: list[str] = []
    for section in sections:
        if lines:
            lines.append("")
        lines.append(section.title)
        lines += _aligned(section)
        for paragraph in section.paragraphs:
            lines += textwrap.wrap(
                paragraph, _WIDTH, initial_indent="  ", subsequent_indent="    ",
                break_long_words=False,
            )  # fmt: skip
    return "\n".join(lines)


def html_page(sections: Iterable[Section]) -> str:
    """Return the page for a notebook, in the notebook's colours."""
    parts: list[Markup] = []
    for number, section in enumerate(sections):
        heading = "h4" if number else "h3"
        parts.append(element(heading, section.title))
        if section.rows:
            parts.append(table(section.header if any(section.header) else (), section.rows))
        parts += [element("p", paragraph) for paragraph in section.paragraphs]
    return element("div", *parts)


def _aligned(section: Section) -> list[str]:
    rows = [section.header, *section.rows] if any(section.header) else list(section.rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  " + "  ".join([first.ljust(widths[0]), *cells]).rstrip())
    return lines
