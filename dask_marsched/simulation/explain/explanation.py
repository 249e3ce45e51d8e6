"""Holds the result of `explain` as numbers, and shows it as a page."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from dask.utils import format_bytes

from dask_marsched.simulation.costs.fused_expressions import FusedExpression
from dask_marsched.simulation.explain.advice import Advice
from dask_marsched.simulation.explain.page import Section, html_page, text_page
from dask_marsched.simulation.explain.results import (
    MemoryGroup,
    PolicyForecast,
    Size,
    WorkerChoice,
)
from dask_marsched.simulation.explain.sections import (
    choices_section,
    forecast_section,
    joined_section,
    kernels_section,
    memory_section,
    sizes_sentence,
)

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
            f"{self.title}: {self.tasks} tasks", paragraphs=(where, sizes_sentence(self.sizes))
        )
        yield forecast_section(self.stock, self.marsched, limit, guessed=guessed)
        yield choices_section(self.choices, self.best, guessed=guessed)
        yield memory_section(self.groups)
        if self.joined:
            yield joined_section(self.joined)
        advice = tuple(
            f"{number}. {advice.reason} {advice.change} [{advice.checked}]"
            for number, advice in enumerate(self.advice, 1)
        )
        nothing = ("None of the rules found anything.",)
        yield Section("What to change", paragraphs=advice or nothing)
        if self.fused:
            yield kernels_section(self.fused)
        notes = [f"Not simulated: {what}" for what in self.not_simulated] + self.notes
        if self.skipped:
            notes.append(f"Skipped for lack of time: {', '.join(self.skipped)}.")
        if notes:
            yield Section("Notes", paragraphs=tuple(notes))

    def __str__(self) -> str:
        return text_page(self._sections())

    def _repr_html_(self) -> str:
        return html_page(self._sections())
