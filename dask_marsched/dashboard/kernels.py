"""Mars: kernels. Fused expressions, what evaluates them, and what that saves."""

from __future__ import annotations

from typing import Any

from bokeh.layouts import column
from bokeh.models import ColumnDataSource, HoverTool

from dask_marsched.dashboard.pane import Pane, number_of, set_data, set_text
from dask_marsched.dashboard.theme import fit_bars, make_bars, make_legend, make_text
from dask_marsched.monitoring.html import element, table

_ROWS, _BARS, _CHARACTERS = 50, 15, 40
#: Height of a bar.
_PIXELS = 34


class KernelsPane(Pane):
    """Seconds saved and seconds of compiling, by expression; all of them in a table."""

    name = "kernels"
    every = 1000

    def __init__(self, scheduler: Any) -> None:
        super().__init__(scheduler)
        names = ("label", "saved", "compiled", "backend", "runs")
        self.source = ColumnDataSource({name: [] for name in names})
        self.plot = make_bars("Processor time by expression, all workers together", "seconds", "")
        self.plot.ygrid.visible = False
        for name, colour, text, height in (
            ("saved", "#0072B2", "saved against NumPy", 0.7),
            ("compiled", "#E69F00", "spent on compiling", 0.3),
        ):
            self.plot.hbar(
                y="label", right=name, height=height, source=self.source, fill_color=colour,
                line_color=None, legend_label=text,
            )  # fmt: skip
        tips = [("", "@label"), ("saved", "@saved{0.000} s"), ("compiling", "@compiled{0.000} s")]
        self.plot.add_tools(HoverTool(tooltips=[*tips, ("by", "@backend"), ("chunks", "@runs")]))
        self.plot.add_layout(self.plot.legend[0], "below")
        make_legend(self.plot, orientation="horizontal")
        self.table = make_text(sizing_mode="stretch_width")
        self.plots, self.texts = [self.plot], [self.table]
        self.arrange(column(self.plot, self.table, sizing_mode="stretch_both"))

    def show(self, observer: Any) -> str | None:
        """Show the expressions there are."""
        found = observer.kernels(_ROWS)
        expressions = found["expressions"]
        if not expressions:
            return _why_none(found)
        shown = expressions[:_BARS]
        labels = [f"{i + 1}. {_shortened(one['text'])}" for i, one in enumerate(shown)]
        fit_bars(self.plot, labels, _PIXELS)
        names = ("saved", "compiled", "backend", "runs")
        set_data(self.source, {"label": labels, **{n: [one[n] for one in shown] for n in names}})
        facts = (
            f" {found['saved']:.3g} s of processor time saved on {number_of(found['fused'])} of "
            f"{number_of(found['runs'])} chunks, {found['compiled']:.3g} s spent on compiling, on "
            f"{found['workers_on']} of {found['workers']} workers"
        )
        set_text(self.heading, element("div", element("b", "Kernels:"), facts))
        set_text(self.table, _table(found))
        return None


def _why_none(found: dict[str, Any]) -> str:
    if found["workers_on"]:
        return (
            f"Kernels are on ({found['workers_on']} workers), and no expression has been evaluated "
            "yet: chains of element-wise operations and reductions of NumPy arrays with 8192 "
            "elements or more are."
        )
    return "Kernels are off: marsched.fusion.kernels. No worker tells of any."


def _shortened(text: str) -> str:
    return text if len(text) <= _CHARACTERS else text[: _CHARACTERS - 1] + "…"


def _table(found: dict[str, Any]) -> str:
    header = ("", "expression", "dtypes", "by", "chunks", "saved, s", "compiling, s", "gave up")
    rows = [
        (
            i + 1,
            element("code", one["text"]),
            one["dtypes"],
            one["backend"],
            number_of(one["runs"]),
            f"{one['saved']:.3f}",
            f"{one['compiled']:.3f}",
            one["given_up"] or "",
        )
        for i, one in enumerate(found["expressions"])
    ]
    shown = table(header, rows, (0, 4, 5, 6, 7))
    if found["more_expressions"]:
        more = element("p", f"and {found['more_expressions']} more, that matter less")
        return element("div", shown, more)
    return shown
