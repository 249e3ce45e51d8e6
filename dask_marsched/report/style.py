"""Colours of a report: told apart by people who see few of them, on light and on dark ground.

The eight of Okabe and Ito ("Color Universal Design", 2008), the black one grey.
"""

STYLE = """
:root{--ground:#fff;--ink:#1f2328;--muted:#57606a;--line:#d8dee4;--panel:#f6f8fa;
--c0:#0072b2;--c1:#e69f00;--c2:#009e73;--c3:#cc79a7;--c4:#56b4e9;--c5:#d55e00;--c6:#b8ab00;
--c7:#8c959f;--bad:#b3400a}
@media (prefers-color-scheme:dark){:root{--ground:#15181c;--ink:#e6e8ea;--muted:#9aa4ae;
--line:#3a4149;--panel:#1e2329;--c0:#3d9bd4;--c6:#f0e442;--bad:#ff9a5c}}
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
.c0{fill:var(--c0);stroke:var(--c0);background:var(--c0)}
.c1{fill:var(--c1);stroke:var(--c1);background:var(--c1)}
.c2{fill:var(--c2);stroke:var(--c2);background:var(--c2)}
.c3{fill:var(--c3);stroke:var(--c3);background:var(--c3)}
.c4{fill:var(--c4);stroke:var(--c4);background:var(--c4)}
.c5{fill:var(--c5);stroke:var(--c5);background:var(--c5)}
.c6{fill:var(--c6);stroke:var(--c6);background:var(--c6)}
.c7{fill:var(--c7);stroke:var(--c7);background:var(--c7)}
.none{fill:var(--line);stroke:var(--line);background:var(--line)}
path.area,rect.area{stroke:none}.crisp{shape-rendering:crispEdges}path.line{fill:none}
""".replace("\n", "")
