"""Draws the page Mars: kernels: fused expressions, their backends, and the time that they save."""

from __future__ import annotations

from typing import Any

from dask_marsched.dashboard.bars_pane import BarsPane
from dask_marsched.dashboard.pane import set_data, set_text
from dask_marsched.monitoring import tables
from dask_marsched.monitoring.html import element
from dask_marsched.monitoring.palette import BLUE, ORANGE
from dask_marsched.monitoring.tables import count

_ROWS, _BARS, _CHARACTERS = 50, 15, 40


class KernelsPane(BarsPane):
    """Seconds saved and seconds of compiling, by expression; all of them in a table."""

    name = "kernels"
    title = "Processor time by expression, all workers together"
    across = "seconds"
    bars = (
        ("saved", "saved against NumPy", BLUE, 0.7, 0.0),
        ("compiled", "spent on compiling", ORANGE, 0.3, 0.0),
    )
    more = ("backend", "runs")
    tips = (
        ("", "@label"),
        ("saved", "@saved{0.000} s"),
        ("compiling", "@compiled{0.000} s"),
        ("by", "@backend"),
        ("chunks", "@runs"),
    )
    pixels = 34

    def show(self, observer: Any) -> str | None:
        """Show the expressions that were evaluated."""
        found = observer.kernels(_ROWS)
        expressions = found["expressions"]
        if not expressions:
            return _why_none(found)
        shown = expressions[:_BARS]
        labels = [f"{i + 1}. {_shortened(one['text'])}" for i, one in enumerate(shown)]
        self.fit(labels)
        names = ("saved", "compiled", *self.more)
        set_data(self.source, {"label": labels, **{n: [one[n] for one in shown] for n in names}})
        facts = (
            f" {found['saved']:.3g} s of processor time saved on {count(found['fused'])} of "
            f"{count(found['runs'])} chunks, {found['compiled']:.3g} s spent on compiling, on "
            f"{found['workers_on']} of {found['workers']} workers"
        )
        set_text(self.heading, element("div", element("b", "Kernels:"), facts))
        set_text(self.table, _table(found))
        return None


def _why_none(found: dict[str, Any]) -> str:
    if found["workers_on"]:
        return (
            f"Kernels are on ({found['workers_on']} workers), and no expression has been evaluated "
            "yet. They evaluate chains of element-wise operations and reductions of NumPy arrays "
            "with 8192 elements or more."
        )
    return "Kernels are off on all workers: marsched.fusion.kernels."


def _shortened(text: str) -> str:
    return text if len(text) <= _CHARACTERS else text[: _CHARACTERS - 1] + "…"


def _table(found: dict[str, Any]) -> str:
    shown = tables.expressions(found["expressions"])
    if found["more_expressions"]:
        more = element("p", f"and {found['more_expressions']} more, which saved less")
        return element("div", shown, more)
    return shown
