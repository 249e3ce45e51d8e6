"""Directive `marsched-drawing`: figures of the explanation pages, drawn as inline SVG.

Inline, so that their colours follow the theme of the page (docs/_static/marsched.css).
"""

from __future__ import annotations

from html import escape
from typing import Any


class Drawing:
    """SVG elements by name: boxes, circles, arrows and words on a canvas."""

    def __init__(self, width: int, height: int, alt: str) -> None:
        self.parts = [
            f'<svg class="drawing" viewBox="0 0 {width} {height}" role="img" '
            f'style="max-width: {width}px" xmlns="http://www.w3.org/2000/svg">'
            f"<title>{escape(alt)}</title>"
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
            'markerHeight="7" orient="auto-start-reverse"><path d="M0 0 8 4 0 8z"/></marker>'
            '<marker id="tip-moved" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
            'markerHeight="7" orient="auto-start-reverse"><path d="M0 0 8 4 0 8z" '
            'class="tip-moved"/></marker></defs>'
        ]

    def box(self, x: float, y: float, w: float, h: float, kind: str = "", text: str = "") -> None:
        """Draw a rectangle, with words in its middle."""
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="5" class="box {kind}"/>'
        )
        if text:
            lines = text.split("\n")
            top = y + h / 2 - 8 * (len(lines) - 1)
            for line in lines:
                self.words(x + w / 2, top + 4.5, line, f"middle on-{kind.split(' ')[0] or 'box'}")
                top += 16

    def circle(self, x: float, y: float, kind: str = "", text: str = "", r: float = 13) -> None:
        """Draw a task."""
        self.parts.append(f'<circle cx="{x}" cy="{y}" r="{r}" class="box {kind}"/>')
        if text:
            self.words(x, y + 4.5, text, f"middle on-{kind.split(' ')[0] or 'box'}")

    def words(self, x: float, y: float, text: str, kind: str = "") -> None:
        """Write one line."""
        self.parts.append(f'<text x="{x}" y="{y}" class="{kind}">{escape(text)}</text>')

    def arrow(self, x1: float, y1: float, x2: float, y2: float, kind: str = "") -> None:
        """Draw an arrow from one point to another."""
        tip = "tip-moved" if "moved" in kind else "tip"
        self.parts.append(
            f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" class="arrow {kind}" '
            f'marker-end="url(#{tip})"/>'
        )

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str = "") -> None:
        """Draw a line."""
        self.parts.append(f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" class="line {kind}"/>')

    def svg(self) -> str:
        """Return the finished drawing."""
        return "\n".join([*self.parts, "</svg>"])


def processes() -> Drawing:
    """Draw which process holds which part of the plugin."""
    d = Drawing(720, 330, "The processes of a cluster and the parts of the plugin in each")
    d.box(10, 105, 110, 70, "", "client\nyour program")
    d.box(190, 20, 250, 250, "group")
    d.words(205, 44, "scheduler", "title")
    for y, text in ((60, "join tasks of a new graph"), (112, "plan: units"), (164, "dispatch")):
        d.box(215, y, 200, 36, "ours", text)
    d.box(215, 216, 200, 36, "ours", "failover, retries")
    d.arrow(315, 96, 315, 110)
    d.arrow(315, 148, 315, 162)
    d.arrow(120, 140, 188, 140)
    d.words(154, 130, "graph", "middle small")
    for i, y in enumerate((20, 155)):
        d.box(510, y, 200, 115, "group")
        d.words(525, y + 22, f"worker {'AB'[i]}", "title")
        d.box(525, y + 34, 170, 30, "ours", "memory quota")
        d.box(525, y + 72, 80, 30, "ours", "kernels")
        d.box(615, y + 72, 80, 30, "ours", "store")
    d.arrow(440, 170, 508, 90)
    d.arrow(440, 190, 508, 210)
    d.words(470, 222, "tasks", "middle small")
    d.box(510, 285, 200, 36, "shared", "shared memory of the host")
    d.arrow(655, 272, 655, 284)
    d.arrow(590, 284, 590, 272)
    d.box(190, 288, 16, 16, "ours")
    d.words(214, 301, "part of the plugin", "small")
    return d


def units() -> Drawing:
    """Draw the same graph, placed task by task and by units."""
    d = Drawing(720, 330, "Eight chunks summed in pairs, placed task by task and by units")
    for left, title, first, pairs in (
        (0, "Each task by itself", "abababab", "abab"),
        (370, "By units", "aaaabbbb", "aabb"),
    ):
        d.words(left + 10, 20, title, "title")
        xs = [left + 25 + 42 * i for i in range(8)]
        if left:
            for i in range(2):
                d.box(left + 4 + 168 * i, 38, 164, 130, "group")
                d.words(left + 12 + 168 * i, 185, f"unit {i + 1}", "small")
        middle = "ab"
        for i in range(4):
            x = (xs[2 * i] + xs[2 * i + 1]) / 2
            for j in (2 * i, 2 * i + 1):
                moved = "moved" if first[j] != pairs[i] else ""
                d.arrow(xs[j], 78, x + (j % 2 * 2 - 1) * 5, 128, moved)
            m = (xs[4 * (i // 2)] + xs[4 * (i // 2) + 3]) / 2
            moved = "moved" if pairs[i] != middle[i // 2] else ""
            d.arrow(x, 154, m + (i % 2 * 2 - 1) * 8, 209, moved)
            d.circle(x, 140, f"worker-{pairs[i]}", "+")
        for i in range(2):
            m = (xs[4 * i] + xs[4 * i + 3]) / 2
            moved = "moved" if middle[i] != "a" else ""
            d.arrow(m, 233, left + 172 + (i * 2 - 1) * 10, 276, moved)
            d.circle(m, 220, f"worker-{middle[i]}", "+")
        d.circle(left + 172, 286, "worker-a", "+")
        for x, c in zip(xs, first, strict=True):
            d.circle(x, 65, f"worker-{c}")
        moves = "7 of 14 results move" if left == 0 else "1 of 14 results moves"
        d.words(left + 340, 291, moves, "end small")
    d.circle(20, 318, "worker-a", r=8)
    d.words(34, 322, "runs on worker A", "small")
    d.circle(170, 318, "worker-b", r=8)
    d.words(184, 322, "runs on worker B", "small")
    d.arrow(320, 318, 360, 318, "moved")
    d.words(368, 322, "result moved between workers", "small")
    return d


def dispatch() -> Drawing:
    """Draw how tasks without inputs wait on the scheduler until a thread is free."""
    d = Drawing(720, 300, "Units wait on the scheduler; a worker with a free thread is sent a task")
    d.box(10, 10, 400, 280, "group")
    d.words(25, 34, "scheduler: units in the order of the graph", "title")
    kinds = {"d": "done", "w": "", "a": "worker-a", "b": "worker-b"}
    for i, (name, states) in enumerate(
        (
            ("unit 1, opened by A", "daw"),
            ("unit 2, opened by B", "ddb"),
            ("unit 3, not opened", "wwww"),
            ("unit 4, not opened", "www"),
        )
    ):
        y = 52 + 58 * i
        d.box(25, y, 370, 46, "inner")
        d.words(40, y + 28, name)
        for j, state in enumerate(states):
            d.circle(230 + 36 * j, y + 23, kinds[state], "✓" if state == "d" else "", 11)
    for i in range(2):
        y = 20 + 140 * i
        d.box(520, y, 190, 115, "group")
        d.words(535, y + 22, f"worker {'AB'[i]}", "title")
        d.box(535, y + 34, 160, 30, f"worker-{'ab'[i]}", "runs a task")
        d.box(535, y + 72, 160, 30, "free", "free thread")
    d.arrow(315, 76, 532, 106)
    d.words(422, 62, "next task", "small")
    d.words(422, 77, "of its unit", "small")
    d.arrow(397, 191, 532, 246)
    d.words(422, 250, "opens the", "small")
    d.words(422, 265, "next unit", "small")
    return d


def quota() -> Drawing:
    """Draw a worker's memory with the quota, and the tasks that wait for it."""
    d = Drawing(720, 320, "A worker's memory against its quota, and tasks that wait for memory")
    x, w, bottom, height = 60, 150, 290, 260
    y = bottom
    for share, kind, text in (
        (0.14, "other", "process"),
        (0.36, "worker-a", "results held"),
        (0.17, "promised", "promised to\nrunning tasks"),
    ):
        y -= share * height
        d.box(x, y, w, share * height, kind, text)
    d.box(x, bottom - height, w, height, "outline")
    for share, down, text in (
        (1.0, 1, "memory limit of the worker"),
        (0.95, 8, "95 %: the nanny ends the worker"),
        (0.8, -1, "80 %: Dask pauses the worker"),
        (0.75, 9, "75 %: the quota"),
    ):
        level = bottom - share * height
        d.line(x - 12, level, x + w + 14, level, "limit" if share == 0.75 else "")
        d.words(x + w + 20, level + down, text)
    d.words(470, 128, "tasks ready to run", "title")
    for i, (need, fits) in enumerate((("needs 5 %", True), ("needs 12 %", False))):
        top = 142 + 44 * i
        d.box(470, top, 110, 32, "" if fits else "free", need)
        if fits:
            d.arrow(468, top + 16, 212, top - 18)
            d.words(590, top + 21, "starts now", "small")
        else:
            d.words(590, top + 21, "waits", "small")
    d.box(470, 254, 110, 36, "disk", "disk")
    d.arrow(212, 222, 468, 272)
    d.words(222, 284, "results needed last are spilled", "small")
    return d


def adoption() -> Drawing:
    """Draw how the results of a dead process go to its neighbour."""
    d = Drawing(720, 250, "A worker dies; its results stay in memory and are taken over")
    steps = ("1. Worker A computes", "2. A's process dies", "3. Worker B takes over")
    for i, title in enumerate(steps):
        left = 5 + 242 * i
        d.words(left + 5, 20, title, "title")
        d.box(left, 32, 226, 210, "group")
        d.words(left + 12, 52, "one host", "small")
        d.box(left + 14, 64, 90, 52, "worker-a" if i == 0 else "dead", "worker A")
        d.box(left + 122, 64, 90, 52, "worker-b", "worker B")
        d.box(left + 14, 168, 198, 62, "shared")
        d.words(left + 24, 186, "memory of A's nanny", "small")
        for j in range(3):
            d.box(left + 26 + 42 * j, 196, 32, 24, "worker-a" if i < 2 else "worker-b")
        if i == 0:
            d.arrow(left + 59, 118, left + 59, 166)
            d.words(left + 68, 146, "results", "small")
        if i == 1:
            d.line(left + 18, 68, left + 100, 112, "cross")
            d.line(left + 18, 112, left + 100, 68, "cross")
        if i == 2:
            d.arrow(left + 167, 166, left + 167, 118)
            d.words(left + 66, 146, "maps, no copy", "small")
    return d


def fusion() -> Drawing:
    """Draw tasks that become one, and the one pass that evaluates it."""
    d = Drawing(
        720, 280, "Four tasks for each chunk become one, which a kernel evaluates in one pass"
    )
    d.words(10, 20, "(a + b).sum() for one chunk", "title")
    for x, text in ((60, "a"), (160, "b")):
        d.box(x - 42, 40, 84, 34, "", f"make {text}")
        d.arrow(x, 74, 110 + (x - 110) * 0.3, 108)
    d.box(68, 110, 84, 34, "", "add")
    d.arrow(110, 144, 110, 178)
    d.box(68, 180, 84, 34, "", "sum")
    d.words(110, 240, "4 tasks", "middle small")
    d.words(110, 256, "3 results kept by the worker", "middle small")
    d.arrow(215, 127, 285, 127)
    d.words(250, 117, "joined", "middle small")
    d.box(295, 40, 120, 174, "ours", "one task\n\nmake a\nmake b\nadd\nsum")
    d.words(355, 240, "1 task", "middle small")
    d.words(355, 256, "1 small result", "middle small")
    d.arrow(425, 127, 495, 127)
    d.words(460, 117, "compiled", "middle small")
    d.box(505, 40, 205, 174, "group")
    d.words(520, 62, "one pass over memory", "title")
    for i, text in enumerate(("read a[i] and b[i]", "add, in registers", "add to the sum")):
        d.box(520, 74 + 44 * i, 175, 32, "ours", text)
        if i:
            d.arrow(607, 62 + 44 * i, 607, 73 + 44 * i)
    d.words(607, 240, "a + b is never written", "middle small")
    return d


DRAWINGS = {f.__name__: f for f in (processes, units, dispatch, quota, adoption, fusion)}


def setup(app: Any) -> dict[str, Any]:
    """Register the directive: name of the drawing as argument, caption as content."""
    from docutils import nodes
    from sphinx.util.docutils import SphinxDirective

    class Figure(SphinxDirective):
        required_arguments = 1
        has_content = True

        def run(self) -> list[nodes.Node]:
            self.env.note_dependency(__file__)
            drawing = DRAWINGS[self.arguments[0]]().svg()
            # Markers are found by id, which must be unique on a page.
            name = self.arguments[0]
            drawing = drawing.replace('id="tip', f'id="{name}-tip').replace(
                "url(#tip", f"url(#{name}-tip"
            )
            figure = nodes.figure(classes=["drawing-figure"])
            figure += nodes.raw("", drawing, format="html")
            caption = nodes.caption()
            for paragraph in self.parse_content_to_nodes():
                caption += paragraph.children
            figure += caption
            return [figure]

    app.add_directive("marsched-drawing", Figure)
    return {"parallel_read_safe": True}
