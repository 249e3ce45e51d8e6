"""Compares the outcome under stock Dask and under the plugin: medians, table, sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dask_marsched.bench.metrics import STOCK, Measurement, geometric_mean, median, ratio
from dask_marsched.bench.report import ratio_text
from dask_marsched.demo.analyses import KILLED


class Quantity(NamedTuple):
    """A measured quantity: its attribute of `Measurement`, its titles and its format."""

    name: str
    title: str
    column: str
    scale: float
    digits: int

    def text(self, value: float | None) -> str:
        """Return a value (in bytes or seconds) as digits in the quantity's unit."""
        return "-" if value is None else f"{value / self.scale:,.{self.digits}f}"


QUANTITIES = (
    Quantity("seconds", "wall time, s", "wall s", 1, 1),
    Quantity("moved", "moved between workers, MiB", "moved MiB", 2**20, 0),
    Quantity("managed", "results held at most, MiB", "held MiB", 2**20, 0),
    Quantity("pss", "memory of the processes, MiB", "PSS MiB", 2**20, 0),
    Quantity("again", "operands computed again", "again", 1, 0),
)


@dataclass(frozen=True)
class Comparison:
    """Medians of an analysis by quantity (None if unknown), and whether all results are equal."""

    title: str
    stock: dict[str, float | None]
    ours: dict[str, float | None]
    same: bool

    def ratio(self, quantity: str) -> float | None:
        """Return the ratio of a quantity to stock's; None if stock's is 0 or unknown."""
        return ratio(self.ours[quantity], self.stock[quantity])


def compare(measurements: Sequence[Measurement]) -> list[Comparison]:
    """Return a comparison for each analysis, in the order in which they first ran."""
    comparisons = []
    for title in dict.fromkeys(m.workload for m in measurements):
        own = [m for m in measurements if m.workload == title]
        stock, ours = (
            _medians([m for m in own if (m.policy == STOCK) is s]) for s in (True, False)
        )
        comparisons.append(Comparison(title, stock, ours, len({m.digest for m in own}) == 1))
    return comparisons


def _medians(runs: Sequence[Measurement]) -> dict[str, float | None]:
    # A PSS of 0 is unknown: only Linux has it.
    return {q.name: median(getattr(m, q.name) for m in runs) for q in QUANTITIES} | {
        "pss": median(m.pss or None for m in runs)
    }


def cells(comparisons: Sequence[Comparison]) -> list[list[str]]:
    """Return the table, its head first: three lines for each analysis."""
    table = [["analysis", "with", *(q.column for q in QUANTITIES), "same"]]
    for c in comparisons:
        stock = [q.text(c.stock[q.name]) for q in QUANTITIES]
        ours = [q.text(c.ours[q.name]) for q in QUANTITIES]
        ratios = [ratio_text(c.ratio(q.name)) for q in QUANTITIES]
        table.append([c.title, "stock Dask", *stock, ""])
        table.append(["", "dask-marsched", *ours, "yes" if c.same else "NO"])
        table.append(["", "of stock's", *ratios, ""])
    return table


def sentences(comparisons: Sequence[Comparison]) -> Iterator[str]:
    """Yield a sentence on the analyses and one on the killed worker."""
    plain = [c for c in comparisons if c.title != KILLED.title]
    parts = []
    for name, words in (
        ("seconds", "took {} of stock Dask's time"),
        ("moved", "moved {} of its bytes"),
        ("pss", "used {} of its memory"),
    ):
        mean = geometric_mean(r for c in plain if (r := c.ratio(name)) is not None)
        if mean is not None:
            parts.append(words.format(ratio_text(mean)))
    yield f"On average dask-marsched {', '.join(parts)}."
    seconds, again = QUANTITIES[0], QUANTITIES[-1]
    for c in comparisons:
        if c.title == KILLED.title:
            yield (
                "After a worker was killed half way, operands computed again: "
                f"{again.text(c.ours['again'])}, stock Dask {again.text(c.stock['again'])}; "
                f"wall time: {seconds.text(c.ours['seconds'])} s, "
                f"stock Dask {seconds.text(c.stock['seconds'])} s."
            )
