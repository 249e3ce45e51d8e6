"""Holds the result of `explain` as numbers, and shows it as a page."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dask.utils import format_bytes, format_time

from dask_marsched.simulation.costs.fused_expressions import FusedExpression
from dask_marsched.simulation.explain.advice import Advice
from dask_marsched.simulation.explain.page import Section, html_page, text_page
from dask_marsched.simulation.explain.results import (
    MemoryGroup,
    PolicyForecast,
    Size,
    WorkerChoice,
)

#: Most rows in the sections about fusion.
_MOST_FUSED = 8
#: Share of guessed sizes from which on verdicts are left out.
_DOUBT = 0.5


@dataclasses.dataclass(frozen=True)
class Explanation:
    """One page about a computation before it runs; ``print`` shows it.

    Attributes
    ----------
    title : str
        What is computed.
    tasks : int
        Tasks in the graph.
    cluster : dict
        ``workers``, ``threads``, ``memory_limit`` (bytes), ``bandwidth``, and the ``source`` of
        these numbers.
    stock, marsched : PolicyForecast
        Stock Dask and the plugin on this cluster.
    sizes : dict of str to int
        Number of results whose size is ``known`` from the graph, ``recorded``, ``learnt`` from
        recorded ones, or ``guessed``.
    choices : list of Size
        Forecasts for other numbers of workers, fewest first.
    best : WorkerChoice
        The recommended number of workers.
    groups : list of MemoryGroup
        The groups that hold most memory at the plugin's peak, largest first.
    joined : dict of str to int
        Number of fused tasks by the operations in them, most frequent first.
    advice : list of Advice
        Recommended changes.
    not_simulated, notes, skipped : list of str
        Features of the graph that the simulation ignores, differences between the cluster and its
        simulation, and simulations left out for lack of time.
    fused : list of FusedExpression
        Expressions that workers evaluate in one pass if ``marsched.fusion.kernels`` is on.
    """

    title: str
    tasks: int
    cluster: dict[str, Any]
    stock: PolicyForecast
    marsched: PolicyForecast
    sizes: dict[str, int]
    choices: list[Size]
    best: WorkerChoice
    groups: list[MemoryGroup]
    joined: dict[str, int]
    advice: list[Advice]
    not_simulated: list[str]
    notes: list[str]
    skipped: list[str]
    fused: list[FusedExpression] = dataclasses.field(default_factory=list)

    @property
    def share_guessed(self) -> float:
        """Share of the results whose size is guessed, 0 to 1."""
        return self.sizes.get("guessed", 0) / max(1, self.tasks)

    def to_dict(self) -> dict[str, Any]:
        """Return everything in plain types, ready for JSON; bytes and seconds."""
        found = dataclasses.asdict(self) | {"share_guessed": self.share_guessed}
        for group in found["groups"]:
            group["shape"] = None if group["shape"] is None else list(group["shape"])
        for shown, size in zip(found["choices"], self.choices, strict=True):
            shown["worker_seconds"] = size.worker_seconds
        return found

    def _sections(self) -> Iterator[Section]:
        cluster, guessed = self.cluster, self.share_guessed >= _DOUBT
        limit = cluster["memory_limit"]
        where = (
            f"on {cluster['workers']} workers x {cluster['threads']} threads, "
            f"{format_bytes(limit)} each, {cluster['source']}"
        )
        yield Section(
            f"{self.title}: {self.tasks} tasks", paragraphs=(where, _sizes_sentence(self.sizes))
        )
        yield _forecast_section(self.stock, self.marsched, limit, guessed=guessed)
        yield _choices_section(self.choices, self.best, guessed=guessed)
        yield _memory_section(self.groups)
        if self.joined:
            yield _joined_section(self.joined)
        advice = tuple(
            f"{number}. {advice.reason} {advice.change} [{advice.checked}]"
            for number, advice in enumerate(self.advice, 1)
        )
        nothing = ("None of the rules found anything.",)
        yield Section("What to change", paragraphs=advice or nothing)
        if self.fused:
            yield _kernels_section(self.fused)
        notes = [f"Not simulated: {what}" for what in self.not_simulated] + self.notes
        if self.skipped:
            notes.append(f"Skipped for lack of time: {', '.join(self.skipped)}.")
        if notes:
            yield Section("Notes", paragraphs=tuple(notes))

    def __str__(self) -> str:
        return text_page(self._sections())

    def _repr_html_(self) -> str:
        return html_page(self._sections())


def _sizes_sentence(sizes: Mapping[str, int]) -> str:
    total = max(1, sum(sizes.values()))
    shares = [f"{count / total:.0%} {kind}" for kind, count in sorted(sizes.items()) if count]
    line = f"Sizes of results: {', '.join(shares)}."
    if sizes.get("guessed"):
        line += (
            " A guessed size is that of the largest input, or the mean of those known: peaks, bytes"
            " moved and makespan are no better than the guesses."
        )
    return line


def _forecast_section(
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


def _choices_section(choices: Sequence[Size], best: WorkerChoice, *, guessed: bool) -> Section:
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


def _memory_section(groups: Sequence[MemoryGroup]) -> Section:
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


def _joined_section(joined: Mapping[str, int]) -> Section:
    rows = tuple((what, f"{count:,}") for what, count in list(joined.items())[:_MOST_FUSED])
    return Section("What becomes one task", ("tasks joined", "how often"), rows)


def _kernels_section(found: Sequence[FusedExpression]) -> Section:
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
