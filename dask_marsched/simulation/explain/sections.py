"""Builds the sections of an explanation's page from its parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dask.utils import format_bytes, format_time

from dask_marsched.simulation.costs.fused_expressions import FusedExpression
from dask_marsched.simulation.explain.page import Section
from dask_marsched.simulation.explain.results import (
    MemoryGroup,
    PolicyForecast,
    Size,
    WorkerChoice,
)

#: Most rows in the sections about fusion.
_MOST_FUSED = 8


def sizes_sentence(sizes: Mapping[str, int]) -> str:
    """Return the shares of known, recorded, learnt and guessed sizes as a sentence."""
    total = max(1, sum(sizes.values()))
    shares = [f"{count / total:.0%} {kind}" for kind, count in sorted(sizes.items()) if count]
    line = f"Sizes of results: {', '.join(shares)}."
    if sizes.get("guessed"):
        line += (
            " A guessed size is that of the largest input, or the mean of those known: peaks, bytes"
            " moved and makespan are no better than the guesses."
        )
    return line


def forecast_section(
    stock: PolicyForecast, ours: PolicyForecast, limit: int, *, guessed: bool
) -> Section:
    """Return the table of both forecasts, without verdicts if most sizes are guessed."""
    names = (
        "makespan", "bytes moved between workers", "peak on the whole cluster",
        "peak of a worker, results", "  with what running tasks make", "written to disk",
    )  # fmt: skip
    verdicts = ("will it fit?", "smallest limit that fits")
    columns = []
    for forecast in (stock, ours):
        numbers = _numbers(forecast, limit)
        known = [_fit(forecast), _smallest_limit(forecast)]
        if guessed:
            numbers, known = [f"{cell} (guess)" for cell in numbers], ["unknown", "unknown"]
        columns.append(numbers + known)
    rows = tuple(zip(names + verdicts, *columns, strict=True))
    errors = dict.fromkeys(f"It cannot run: {f.error}." for f in (stock, ours) if f.error)
    return Section(
        "What to expect", ("", "stock Dask", "dask_marsched"), rows, paragraphs=tuple(errors)
    )


def _numbers(forecast: PolicyForecast, limit: int) -> list[str]:
    held = forecast.peak_per_worker
    return [
        format_time(forecast.makespan).strip(),
        format_bytes(forecast.bytes_moved),
        format_bytes(forecast.peak_memory),
        f"{format_bytes(held)} ({held / limit:.0%} of the limit)",
        format_bytes(forecast.peak_with_tasks),
        format_bytes(forecast.bytes_spilled),
    ]


def _fit(forecast: PolicyForecast) -> str:
    if forecast.fits:
        return "yes"
    if forecast.error:
        return "no, it cannot run"
    if forecast.bytes_spilled or forecast.seconds_paused:
        return "no, it spills or pauses"
    return "no, running tasks need more"


def _smallest_limit(forecast: PolicyForecast) -> str:
    how = "simulated" if forecast.verified else "computed"
    return f"{format_bytes(forecast.smallest_limit)} ({how})"


def choices_section(choices: Sequence[Size], best: WorkerChoice, *, guessed: bool) -> Section:
    """Return the table of the numbers of workers."""
    rows = tuple(
        (
            f"{size.workers}{' *' if size.workers == best.workers else ''}",
            format_time(size.makespan).strip(),
            f"{size.worker_seconds / 3600:.4g}",
            format_bytes(size.peak_per_worker),
            format_bytes(size.smallest_limit),
            "unknown" if guessed else "yes" if size.fits else "no",
        )
        for size in choices
    )
    header = ("workers", "makespan", "worker-hours", "peak of a worker", "limit needed", "fits")
    return Section("How many workers, with dask_marsched", header, rows, paragraphs=(best.reason,))


def memory_section(groups: Sequence[MemoryGroup]) -> Section:
    """Return the table of the groups in memory at the peak."""
    rows = []
    for group in groups:
        each = format_bytes(round(group.nbytes / max(1, group.alive)))
        parts = [] if group.shape is None else [" x ".join(map(str, group.shape)) or "scalar"]
        parts += [] if group.dtype is None else [group.dtype]
        rows.append(
            (
                group.name,
                format_bytes(group.nbytes),
                f"{group.share:.0%}",
                str(group.alive),
                str(group.tasks),
                ", ".join([*parts, f"{each} each"]),
            )
        )
    header = ("group", "bytes", "share", "chunks alive", "of", "largest chunk")
    return Section("What holds the memory at the peak of dask_marsched", header, tuple(rows))


def joined_section(joined: Mapping[str, int]) -> Section:
    """Return the table of the fused tasks."""
    rows = tuple((what, f"{count:,}") for what, count in list(joined.items())[:_MOST_FUSED])
    return Section("What becomes one task", ("tasks joined", "how often"), rows)


def kernels_section(found: Sequence[FusedExpression]) -> Section:
    """Return the table of the expressions that workers evaluate in one pass."""
    rows = tuple(
        (
            one.text,
            str(one.tasks),
            ", ".join(one.backends) or "-",
            format_time(one.saved).strip() if one.backends else "-",
        )
        for one in found[:_MOST_FUSED]
    )
    left = len(found) - len(rows)
    return Section(
        "Evaluated in one pass, with marsched.fusion.kernels",
        ("expression", "tasks", "chosen so far", "saved so far"),
        rows,
        paragraphs=(f"and {left} more",) if left else (),
    )
