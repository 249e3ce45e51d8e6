"""An explanation as a page: sections of paragraphs and tables, as text or as HTML."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Iterator, Sequence
from html import escape

from dask.utils import format_bytes, format_time

from dask_marsched.simulation.costs.fused_expressions import FusedExpression
from dask_marsched.simulation.explain.explanation import Explanation, MemoryGroup, PolicyForecast

_WIDTH = 96
#: Expressions that are listed.
_MOST_JOINED = 8
#: Share of guessed sizes from which on numbers are marked as guesses, and verdicts left out.
_DOUBT = 0.5
#: Fused expressions that are shown.
_EXPRESSIONS = 8

Row = tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of the page: a table, then paragraphs."""

    title: str
    header: Row = ()
    rows: tuple[Row, ...] = ()
    paragraphs: tuple[str, ...] = ()


def text(explanation: Explanation) -> str:
    """Return the page for a terminal."""
    lines: list[str] = []
    for section in _sections(explanation):
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


def html(explanation: Explanation) -> str:
    """Return the page for a notebook; colours are those of the notebook."""
    parts = ["<div>"]
    for number, section in enumerate(_sections(explanation)):
        heading = "h4" if number else "h3"
        parts.append(f"<{heading}>{escape(section.title)}</{heading}>")
        rows = [_html_row(row, "td") for row in section.rows]
        if rows:
            header = _html_row(section.header, "th") if any(section.header) else ""
            parts += ["<table>", header, *rows, "</table>"]
        parts += [f"<p>{escape(paragraph)}</p>" for paragraph in section.paragraphs]
    return "".join([*parts, "</div>"])


def _html_row(row: Row, cell: str) -> str:
    return f"<tr>{''.join(f'<{cell}>{escape(value)}</{cell}>' for value in row)}</tr>"


def _aligned(section: Section) -> list[str]:
    rows = [section.header, *section.rows] if any(section.header) else list(section.rows)
    if not rows:
        return []
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  " + "  ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]  # fmt: skip


def _sections(found: Explanation) -> Iterator[Section]:
    cluster = found.cluster
    yield Section(
        f"{found.title}: {found.tasks} tasks",
        paragraphs=(
            f"on {cluster['workers']} workers x {cluster['threads']} threads, "
            f"{format_bytes(cluster['memory_limit'])} each, {cluster['source']}",
            _sizes(found),
        ),
    )
    yield _forecast(found)
    yield _choices(found)
    yield Section(
        "What holds the memory at the peak of dask_marsched",
        ("group", "bytes", "share", "chunks alive", "of", "largest chunk"),
        tuple(_group(group) for group in found.groups),
    )
    if found.joined:
        yield Section(
            "What becomes one task",
            ("tasks joined", "how often"),
            tuple(
                (what, f"{count:,}") for what, count in list(found.joined.items())[:_MOST_JOINED]
            ),
        )
    yield Section(
        "What to change",
        paragraphs=tuple(
            f"{number}. {advice.reason} {advice.change} [{advice.checked}]"
            for number, advice in enumerate(found.advice, 1)
        )
        or ("None of the rules found anything.",),
    )
    if found.fused:
        yield _fused(found.fused)
    notes = [f"Not simulated: {what}" for what in found.not_simulated] + found.notes
    if found.skipped:
        notes.append(f"Skipped for lack of time: {', '.join(found.skipped)}.")
    if notes:
        yield Section("Notes", paragraphs=tuple(notes))


def _fused(found: Sequence[FusedExpression]) -> Section:
    rows = tuple(
        (
            one.text,
            str(one.tasks),
            ", ".join(one.backends) or "-",
            format_time(one.saved).strip() if one.backends else "-",
        )
        for one in found[:_EXPRESSIONS]
    )
    left = len(found) - len(rows)
    return Section(
        "Evaluated in one pass, with marsched.fusion.kernels",
        ("expression", "tasks", "chosen so far", "saved so far"),
        rows,
        paragraphs=(f"and {left} more",) if left else (),
    )


def _sizes(found: Explanation) -> str:
    total = max(1, sum(found.sizes.values()))
    shares = [f"{count / total:.0%} {kind}" for kind, count in sorted(found.sizes.items()) if count]
    line = f"Sizes of results: {', '.join(shares)}."
    if found.sizes.get("guessed"):
        line += (
            " A guessed size is that of the largest input, or the mean of those known: peaks, bytes"
            " moved and makespan are no better than the guesses."
        )
    return line


def _forecast(found: Explanation) -> Section:
    stock, ours, limit = found.stock, found.marsched, found.cluster["memory_limit"]

    def row(name: str, show: str) -> Row:
        cells = [_cell(forecast, show, limit) for forecast in (stock, ours)]
        if found.share_guessed >= _DOUBT:
            cells = [
                "unknown" if show in ("fits", "smallest") else f"{cell} (guess)" for cell in cells
            ]
        return (name, *cells)

    rows = (
        row("makespan", "makespan"),
        row("bytes moved between workers", "moved"),
        row("peak on the whole cluster", "peak"),
        row("peak of a worker, results", "results"),
        row("  with what running tasks make", "tasks"),
        row("written to disk", "spilled"),
        row("will it fit?", "fits"),
        row("smallest limit that fits", "smallest"),
    )
    errors = dict.fromkeys(f"It cannot run: {f.error}." for f in (stock, ours) if f.error)
    return Section(
        "What to expect", ("", "stock Dask", "dask_marsched"), rows, paragraphs=tuple(errors)
    )


def _cell(forecast: PolicyForecast, show: str, limit: int) -> str:
    if show == "makespan":
        return format_time(forecast.makespan).strip()
    if show == "results":
        part = forecast.peak_per_worker / limit
        return f"{format_bytes(forecast.peak_per_worker)} ({part:.0%} of the limit)"
    if show == "fits":
        if forecast.fits:
            return "yes"
        if forecast.error:
            return "no, it cannot run"
        if forecast.bytes_spilled or forecast.seconds_paused:
            return "no, it spills or pauses"
        return "no, running tasks need more"
    if show == "smallest":
        how = "simulated" if forecast.verified else "computed"
        return f"{format_bytes(forecast.smallest_limit)} ({how})"
    nbytes = {
        "moved": forecast.bytes_moved,
        "peak": forecast.peak_memory,
        "tasks": forecast.peak_with_tasks,
        "spilled": forecast.bytes_spilled,
    }[show]
    return format_bytes(nbytes)


def _choices(found: Explanation) -> Section:
    rows = tuple(
        (
            f"{size.workers}{' *' if size.workers == found.best.workers else ''}",
            format_time(size.makespan).strip(),
            f"{size.worker_seconds / 3600:.4g}",
            format_bytes(size.peak_per_worker),
            format_bytes(size.smallest_limit),
            "unknown" if found.share_guessed >= _DOUBT else "yes" if size.fits else "no",
        )
        for size in found.choices
    )
    header = ("workers", "makespan", "worker-hours", "peak of a worker", "limit needed", "fits")
    return Section(
        "How many workers, with dask_marsched", header, rows, paragraphs=(found.best.reason,)
    )


def _group(group: MemoryGroup) -> Row:
    each = format_bytes(round(group.nbytes / max(1, group.alive)))
    parts = [] if group.shape is None else [" x ".join(map(str, group.shape)) or "scalar"]
    parts += [] if group.dtype is None else [group.dtype]
    return (
        group.name,
        format_bytes(group.nbytes),
        f"{group.share:.0%}",
        str(group.alive),
        str(group.tasks),
        ", ".join([*parts, f"{each} each"]),
    )
