"""Reports of the same graph side by side, as text for the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from dask.utils import format_bytes

from dask_marsched.simulation.report.report import SimulationReport

_WIDTH = 14


def lines(reports: Sequence[SimulationReport]) -> Iterator[str]:
    """Yield the lines of a table with a column for each report.

    With two reports there is a third column: the second as a multiple of the first.

    Parameters
    ----------
    reports
        Of the same graph on the same cluster.

    Yields
    ------
    str
        A line, without the line's end.
    """
    yield setting(reports[0])
    yield ""
    heads = [report.policy for report in reports]
    width = max(map(len, (name for name, _, _ in _ROWS))) + 2
    yield " " * width + "".join(f"{head:>{_WIDTH}}" for head in [*heads, *_ratio_head(reports)])
    for name, value, text in _ROWS:
        values = [value(report) for report in reports]
        cells = [text(one) for one in values]
        if len(reports) == 2:
            cells.append(f"{values[1] / values[0]:.2f}" if values[0] else "-")
        yield name.ljust(width) + "".join(f"{cell:>{_WIDTH}}" for cell in cells)
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


def setting(report: SimulationReport) -> str:
    """Return in a few words what was simulated on which cluster."""
    threads = "1 thread" if report.threads == 1 else f"{report.threads} threads"
    workers = "1 worker" if report.workers == 1 else f"{report.workers:,} workers"
    memory = format_bytes(report.memory_limit)
    return f"{report.tasks:,} tasks on {workers} of {threads} and {memory}"


def _ratio_head(reports: Sequence[SimulationReport]) -> list[str]:
    return ["ratio"] if len(reports) == 2 else []


def _fullest(report: SimulationReport) -> int:
    return max(report.peak_memory_per_worker.values(), default=0)


def _bytes(value: float) -> str:
    return str(format_bytes(int(value)))


def _seconds(value: float) -> str:
    return f"{value:.3f} s"


_ROWS: tuple[
    tuple[str, Callable[[SimulationReport], float], Callable[[float], str]], ...
] = (
    ("makespan", lambda report: report.makespan, _seconds),
    ("threads busy", lambda report: report.utilisation, "{:.0%}".format),
    ("moved between workers", lambda report: report.bytes_moved, _bytes),
    ("moved between hosts", lambda report: report.bytes_between_hosts, _bytes),
    ("transfers", lambda report: report.transfers, "{:,}".format),
    ("peak memory, cluster", lambda report: report.peak_memory, _bytes),
    ("peak memory, fullest worker", _fullest, _bytes),
    ("... of its limit", lambda report: _fullest(report) / report.memory_limit, "{:.0%}".format),
    ("spilled to disk", lambda report: report.bytes_spilled, _bytes),
    ("workers paused", lambda report: report.seconds_paused, _seconds),
    ("tasks recomputed", lambda report: report.tasks_recomputed, "{:,}".format),
)  # fmt: skip
