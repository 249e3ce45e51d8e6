"""Formats reports of the same graph side by side, as text for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dask.utils import format_bytes

from dask_marsched.simulation.report.report import SimulationReport

_WIDTH = 14


def comparison_lines(reports: Sequence[SimulationReport]) -> Iterator[str]:
    """Yield the lines of a table with a column for each report, and the ratios of two."""
    two = len(reports) == 2
    yield reports[0].setting
    yield ""
    columns = [report.quantities() for report in reports]
    width = max(len(name) for name, _, _ in columns[0]) + 2
    heads = [report.policy for report in reports] + ["ratio"] * two
    yield " " * width + "".join(f"{head:>{_WIDTH}}" for head in heads)
    for row in zip(*columns, strict=True):
        cells = [text for _, _, text in row]
        if two:
            (_, first, _), (_, second, _) = row
            cells.append(f"{second / first:.2f}" if first else "-")
        yield row[0][0].ljust(width) + "".join(f"{cell:>{_WIDTH}}" for cell in cells)
    for report in reports:
        yield ""
        yield f"{report.policy}: most memory is held by"
        for group in report.peak_groups():
            held = f"{format_bytes(group.nbytes):>12}  {group.share:4.0%}"
            yield f"  {held}  {group.group} ({group.count:,} results)"
    notes = dict.fromkeys(text for report in reports for text in report.not_simulated)
    if notes:
        yield ""
        yield "not simulated:"
        yield from (f"  {text}" for text in notes)
