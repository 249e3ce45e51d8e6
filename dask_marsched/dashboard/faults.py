"""Mars: faults. What died or failed, and what became of it."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

from bokeh.layouts import column
from bokeh.models import ColumnDataSource, HoverTool

from dask_marsched.dashboard.pane import Pane, number_of, set_data, set_text
from dask_marsched.dashboard.theme import fit_bars, make_bars, make_legend, make_text
from dask_marsched.monitoring.html import Markup, element, joined, table

#: What became of the results of a lost worker, and of what it ran: key, text, colour.
_KINDS = (
    ("adopted", "adopted by others", "#0072B2"),
    ("lost", "lost", "#E69F00"),
    ("again", "computed again", "#D55E00"),
    ("interrupted", "sent again", "#56B4E9"),
)
_GROUPS = 3
#: Height of the bars of a loss.
_PIXELS = 60


class FaultsPane(Pane):
    """The last losses of workers: what was adopted, what was computed again, how long it took."""

    name = "faults"
    every = 1000

    def __init__(self, scheduler: Any) -> None:
        super().__init__(scheduler)
        names = ["label", "worker", "seconds", *(key for key, _, _ in _KINDS)]
        self.source = ColumnDataSource({name: [] for name in names})
        self.plot = make_bars(
            "Operands and results, by lost worker", "operands or results", "time of the loss"
        )
        self.plot.ygrid.visible = False
        height = 0.8 / len(_KINDS)
        for i, (key, text, colour) in enumerate(_KINDS):
            place = {"field": "label", "transform": _dodge(0.3 - i * height, self.plot.y_range)}
            self.plot.hbar(
                y=place, right=key, height=0.9 * height, source=self.source, fill_color=colour,
                line_color=None, legend_label=text,
            )  # fmt: skip
        tips = [("worker", "@worker"), *((text, f"@{key}{{0,0}}") for key, text, _ in _KINDS)]
        self.plot.add_tools(HoverTool(tooltips=[*tips, ("recovered after", "@seconds")]))
        self.plot.add_layout(self.plot.legend[0], "below")
        make_legend(self.plot, orientation="horizontal")
        self.table = make_text(sizing_mode="stretch_width")
        self.plots, self.texts = [self.plot], [self.table]
        self.arrange(column(self.plot, self.table, sizing_mode="stretch_both"))

    def show(self, observer: Any) -> str | None:
        """Show the last losses."""
        found = observer.faults()
        set_text(self.heading, _heading(found))
        last = found.get("last", [])
        if not last:
            text = _other_faults(found)
            return text or (
                "Nothing has died or failed since the plugin was registered. Workers that are "
                "lost, what others adopt of their results and what is computed again appear here."
            )
        labels = [f"{i + 1}. {_clock(event['time'])}" for i, event in enumerate(last)]
        fit_bars(self.plot, labels[::-1], _PIXELS)
        data = {
            "label": labels,
            "worker": [event["worker"] for event in last],
            "seconds": [_seconds(event) for event in last],
            **{key: [event.get(key, 0) for event in last] for key, _, _ in _KINDS},
        }
        set_data(self.source, data)
        set_text(self.table, _table(labels, last))
        return None


def _dodge(value: float, where: Any) -> Any:
    from bokeh.models import Dodge

    return Dodge(value=value, range=where)


def _clock(time: float) -> str:
    return datetime.datetime.fromtimestamp(time).strftime("%H:%M:%S")


def _seconds(event: Mapping[str, Any]) -> str:
    return "not yet" if event.get("seconds") is None else f"{event['seconds']:.1f} s"


def _heading(found: Mapping[str, Any]) -> str:
    facts = [
        f" {number_of(found.get('losses', 0), 'worker')} lost that held or ran something, "
        f"{number_of(found.get('recovered', 0))} made up for; "
        f"{number_of(found.get('results_adopted', 0), 'result')} adopted, "
        f"{number_of(found.get('computed_again', 0), 'operand')} computed again",
    ]
    facts += [f"; {text}" for text in _others(found)]
    return element("div", element("b", "Faults:"), *facts)


def _others(found: Mapping[str, Any]) -> list[str]:
    names = {
        "retried": ("failure", "tried again"),
        "fatal": ("operand", "failed for good"),
        "cancelled": ("operand", "cancelled"),
        "interrupted": ("operand", "interrupted"),
    }
    texts = [
        f"{number_of(found[key], what)} {became}"
        for key, (what, became) in names.items()
        if found.get(key)
    ]
    caught = sum(found["exceptions"].values())
    if caught:
        texts.append(f"{number_of(caught, 'exception')} in hooks of ours (a defect: see status)")
    return texts


def _other_faults(found: Mapping[str, Any]) -> str | None:
    others = _others(found)
    if not others:
        return None
    causes = " Causes of failures are on the page of operands." if found.get("fatal") else ""
    return f"No worker was lost. {', '.join(others)}.{causes}"


def _table(labels: list[str], last: list[dict[str, Any]]) -> Markup:
    rows = [
        (
            label,
            event["worker"],
            *(number_of(event.get(key, 0)) for key, _, _ in _KINDS),
            number_of(event.get("excess", 0)),
            _seconds(event),
            ", ".join(f"{name} {n}" for name, n in list(event["groups"].items())[:_GROUPS]),
        )
        for label, event in reversed(list(zip(labels, last, strict=True)))
    ]
    header = ("time", "worker", *(text for _, text, _ in _KINDS), "more than needed",
              "recovered after", "computed again, of")  # fmt: skip
    title = element("b", "The last losses")
    return joined([title, table(header, rows, range(2, 8))])
