"""Makes figures and texts that suit light and dark backgrounds.

The browser chooses by ``?theme=`` in the address, by JupyterLab's theme, or by the system's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bokeh.models import BasicTicker, CustomJS, NumeralTickFormatter
from bokeh.models.widgets import Div
from bokeh.plotting import figure

from dask_marsched.monitoring.palette import INK

_CHOOSE = """
const asked = new URLSearchParams(window.location.search).get("theme");
let lab;
try {
  if (window.parent !== window) { lab = window.parent.document.body.dataset.jpThemeLight; }
} catch (error) { /* of another origin */ }
const system = window.matchMedia("(prefers-color-scheme: dark)").matches;
const dark = asked ? asked === "dark" : lab !== undefined ? lab === "false" : system;
const ink = dark ? "#E6E6E6" : "#222222";
const soft = dark ? "#4A4A4A" : "#DDDDDD";
const ground = dark ? "#16181A" : "#FFFFFF";
document.documentElement.style.background = ground;
document.body.style.background = ground;
document.body.style.color = ink;
document.body.dataset.marsTheme = dark ? "dark" : "light";
// The server need not know of these changes.
const own = {sync: false};
for (const text of texts) { text.setv({styles: {...text.styles, color: ink}}, own); }
const inked = ["major_label_text_color", "axis_label_text_color", "axis_line_color",
               "major_tick_line_color", "label_text_color"];
for (const plot of plots) {
  plot.title.setv({text_color: ink}, own);
  for (const part of [...plot.left, ...plot.below, ...plot.right, ...plot.above, ...plot.center]) {
    for (const name of inked) {
      if (part[name] !== undefined) { part.setv({[name]: ink}, own); }
    }
    if (part.grid_line_color) { part.setv({grid_line_color: soft}, own); }
  }
}
"""


def make_figure(title: str, across: str, down: str, **options: Any) -> Any:
    """Return a figure with labelled axes."""
    made: Any = figure(
        title=title,
        x_axis_label=across,
        y_axis_label=down,
        **{
            "sizing_mode": "stretch_both",
            "min_height": 180,
            "toolbar_location": "above",
            "tools": "pan,wheel_zoom,box_zoom,reset,save",
            **options,
        },
    )
    made.background_fill_color = None
    made.border_fill_color = None
    made.outline_line_color = None
    made.toolbar.logo = None
    made.toolbar.autohide = True
    made.title.text_color = INK
    for axis in made.axis:
        axis.major_label_text_color = INK
        axis.axis_label_text_color = INK
        axis.axis_label_text_font_style = "normal"
        axis.axis_line_color = INK
        axis.major_tick_line_color = INK
        axis.minor_tick_line_color = None
    made.grid.grid_line_color = "#CCCCCC"
    made.grid.grid_line_alpha = 0.6
    return made


def count_bytes(axis: Any, ticks: int = 5) -> None:
    """Format an axis or a scale of colours in binary units of bytes, with about this many ticks."""
    axis.ticker = BasicTicker(
        base=1024, mantissas=[1, 2, 4, 8, 16, 32, 64, 128, 256, 512], desired_num_ticks=ticks
    )
    axis.formatter = NumeralTickFormatter(format="0.[0] b")


def make_text(size: str = "13px") -> Any:
    """Return a place for HTML."""
    font = {"font-family": "Helvetica, Arial, sans-serif", "font-size": size}
    return Div(styles={"color": INK, **font}, sizing_mode="stretch_width")


def make_legend(plot: Any, place: str = "right", **options: Any) -> None:
    """Put the legend of a figure beside it, with a transparent background."""
    plot.add_layout(plot.legend[0], place)
    for legend in plot.legend:
        legend.background_fill_color = None
        legend.border_line_color = None
        legend.label_text_color = INK
        legend.label_text_font_size = "11px"
        # Entries beside each other would touch without spacing.
        legend.spacing = 14 if options.get("orientation") == "horizontal" else 0
        legend.update(**options)


def follow_theme(doc: Any, plots: Sequence[Any], texts: Sequence[Any]) -> None:
    """Let a document choose its theme once the browser shows it."""
    script = CustomJS(args={"plots": list(plots), "texts": list(texts)}, code=_CHOOSE)
    doc.js_on_event("document_ready", script)
