"""Defines the style sheet of a report, on light and on dark ground."""

from dask_marsched.monitoring.palette import SET, YELLOW

#: Number of the colours that workers and lines are told apart by; after these they repeat.
COLOURS = 8
# Yellow and grey are darker than the palette's: here they are lines on white, too.
_VARIABLES = "".join(
    f"--c{i}:{colour};" for i, colour in enumerate((*SET[:6], "#b8ab00", "#8c959f"))
)
_CLASSES = "".join(
    f".{name}{{fill:var(--{colour});stroke:var(--{colour});background:var(--{colour})}}"
    for name, colour in [*((f"c{i}", f"c{i}") for i in range(COLOURS)), ("none", "line")]
)
STYLE = (
    f"""
:root{{--ground:#fff;--ink:#1f2328;--muted:#57606a;--line:#d8dee4;--panel:#f6f8fa;
{_VARIABLES}--bad:#b3400a}}
@media (prefers-color-scheme:dark){{:root{{--ground:#15181c;--ink:#e6e8ea;--muted:#9aa4ae;
--line:#3a4149;--panel:#1e2329;--c0:#3d9bd4;--c6:{YELLOW};--bad:#ff9a5c}}}}
"""
    + """
body{margin:0;background:var(--ground);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:860px;margin:0 auto;padding:1.5em}
h1{font-size:1.6em;margin:.2em 0}h2{font-size:1.2em;margin:2em 0 .4em;
border-bottom:1px solid var(--line)}h3{font-size:1em;margin:1.4em 0 .2em}
table{border-collapse:collapse;font-size:.9em;margin:.6em 0;max-width:100%}
td,th{font-variant-numeric:tabular-nums}th{font-weight:600}.wide{overflow-x:auto}
.wide td,.wide th{white-space:nowrap}
figure{margin:.6em 0}svg{width:100%;height:auto;display:block}
svg text{fill:var(--muted);font-size:12px}pre{background:var(--panel);padding:.8em;overflow:auto}
.muted{color:var(--muted)}.note{background:var(--panel);padding:.6em .8em;border-left:4px solid
var(--c1)}.failed{background:var(--panel);padding:.6em .8em;border-left:4px solid var(--bad);
color:var(--bad);font-weight:600;white-space:pre-wrap}
.tiles{display:flex;flex-wrap:wrap;gap:.8em;margin:1em 0}.tiles div{background:var(--panel);
border-radius:6px;padding:.6em .9em;min-width:8em}.tiles b{display:block;font-size:1.25em}
.tiles span{color:var(--muted);font-size:.85em}
.legend{display:flex;flex-wrap:wrap;gap:.2em 1em;font-size:.85em;color:var(--muted)}
.key{display:inline-block;width:.8em;height:.8em;margin-right:.4em;border-radius:2px}
.grid{stroke:var(--line);stroke-width:1}.limit{stroke:var(--ink);stroke-width:1.2;
stroke-dasharray:5 4}.line{fill:none;stroke-width:1.8;stroke-linejoin:round}
"""
    + _CLASSES
    + "path.area,rect.area{stroke:none}.crisp{shape-rendering:crispEdges}path.line{fill:none}"
)
STYLE = STYLE.replace("\n", "")
