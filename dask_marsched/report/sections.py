"""Makes the sections of a report from the observer's figures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from dask.utils import format_bytes, format_time

from dask_marsched.monitoring.html import Markup, element
from dask_marsched.monitoring.html import table as plain_table
from dask_marsched.report import changes, charts
from dask_marsched.report.style import COLOURS

#: States of operands from the bottom of the chart up, and their colours.
STATES = {
    "finished": "c0",
    "freed": "c4",
    "running": "c1",
    "ready": "c2",
    "unscheduled": "c7",
    "fatal": "c5",
    "cancelled": "c3",
}
NOT_FROM_START = (
    "The plugin was registered anew meanwhile: counts of transfers, kernels and faults start there."
)
_MOST_PAIRS = 20
#: Fewest points in time of a chart; shorter runs are described in words.
_LEAST_POINTS = 4
#: Workers whose memory is drawn as lines of their own.
_MOST_LINES = COLOURS


def nothing(found: Mapping[str, Any]) -> str | None:
    """Return why a report has little to show, or None."""
    plugin = found["plugin"]
    if plugin is None:
        return (
            "dask_marsched was not registered on this scheduler: plans, transfers, kernels and "
            "faults are unknown. client.register_plugin(dask_marsched.MarsSchedulerPlugin()) "
            "registers it."
        )
    if not plugin["active"]:
        return f"dask_marsched was not active: {plugin['reason']}."
    if found["observed"] is None:
        return "The observer was off (marsched.observer.enabled): there is little to show."
    if not found["observed"]["graphs"]:
        return "No graph was planned meanwhile."
    return None


def summary(found: Mapping[str, Any]) -> Markup:
    """Return the most important figures, for the top of the page."""
    observed = found["observed"]
    before = observed["before"]
    graphs = observed["graphs"]
    moved = changes.less(observed["transfers"]["moved"], before.get("transfers", {}).get("moved"))
    operands = _count(sum(g["operands"] for g in graphs))
    tiles = [
        (operands, f"operands in {_several(len(graphs), 'graph')}"),
        (format_bytes(moved), "moved between workers"),
    ]
    stock = [g["estimate"]["estimate"] for g in graphs]
    if graphs and all(stock):
        total = sum(one["stock"] for one in stock)
        tiles.append((format_bytes(round(total)), "stock Dask, estimated"))
    peak = max((max(s["process"], default=0) for s in found["followed"].values()), default=0)
    tiles.append((format_bytes(round(peak)), "most that a worker took"))
    kernels = observed["kernels"]
    if kernels["workers_on"]:
        saved = kernels["saved"] - before.get("kernels", {}).get("saved", 0.0)
        tiles.append((_seconds(saved), "saved by fused kernels"))
    losses = changes.less(
        observed["faults"].get("losses", 0), before.get("faults", {}).get("losses")
    )
    if losses:
        tiles.append((_count(losses), "workers lost" if losses > 1 else "worker lost"))
    shown = [element("div", element("b", value), element("span", name)) for value, name in tiles]
    return element("div", *shown, attributes={"class": "tiles"})


def graphs(observed: Mapping[str, Any]) -> Iterator[Markup]:
    """Yield the plan and the operands of each graph."""
    if observed["more_graphs"]:
        yield _muted(f"{_count(observed['more_graphs'])} earlier graphs are not shown.")
    for graph in observed["graphs"]:
        took = (graph["finished"] or graph["over_time"]["series"]["time"][-1]) - graph["planned"]
        end = format_time(took).strip() if graph["done"] else "not done when the report was made"
        yield element("h2", f"Graph {graph['number']}: {_count(graph['operands'])} operands, {end}")
        yield _muted(_planned(graph))
        picture = graph["plan"]
        if picture["cells"]:
            yield element("h3", "Plan: where operands ran")
            yield charts.plan(picture, picture["cells"])
            if picture["aggregated"]:
                yield _muted("A cell stands for several operands; its colour is that of most.")
        yield element("h3", "Operands by state")
        yield from _states(graph)
        causes = graph["over_time"]["causes"]
        if causes:
            yield table(
                ("state", "operand", "cause", "operands"),
                [(c["state"], c["operand"], c["cause"], _count(c["count"])) for c in causes],
                numbers=[3],
            )


def _several(count: int, what: str) -> str:
    return f"{_count(count)} {what}{'' if count == 1 else 's'}"


def _planned(graph: Mapping[str, Any]) -> str:
    policies = ", ".join(f"{kind} {name}" for kind, name in graph["policies"].items())
    parts = [f"{_count(graph['initial'])} initial operands in {_several(graph['units'], 'unit')}"]
    if graph["replanned"]:
        parts.append(f"replanned {_several(graph['replanned'], 'time')}")
    parts.append(f"{format_bytes(round(graph['moved']))} of its results moved")
    found = graph["estimate"]
    if found["estimate"] is not None:
        one = found["estimate"]
        parts.append(
            f"stock Dask would have moved {format_bytes(round(one['stock']))}: an estimate, which "
            f"forecasts {format_bytes(round(one['plan']))} for this plan"
        )
    elif found["reason"]:
        parts.append(f"no estimate of stock Dask: {found['reason']}")
    return f"{'; '.join(parts)}. Policies: {policies}."


def _states(graph: Mapping[str, Any]) -> Iterator[Markup]:
    series = graph["over_time"]["series"]
    first = graph["planned"]
    # All operands were unscheduled when it was planned, before the first sample.
    times = [0.0, *(max(0.0, t - first) for t in series["time"])]
    start = {"unscheduled": graph["operands"]}
    drawn = [(name, [start.get(name, 0), *series[name]], style) for name, style in STATES.items()]
    if len(set(times)) >= _LEAST_POINTS:
        yield charts.layers(times, drawn, "operands")
    counts = graph["over_time"]["counts"]
    now = ", ".join(f"{_count(count)} {name}" for name, count in counts.items() if count)
    yield _muted(f"At the end: {now or 'none is left'}.")


def memory(found: Mapping[str, Any]) -> Iterator[Markup]:
    """Yield the memory of the workers: over time, and by its parts."""
    followed = found["followed"]
    yield element("h2", "Memory of the workers")
    if not followed:
        yield element("p", "There were no workers.", attributes={"class": "note"})
        return
    began = found["began"]
    fullest = sorted(followed, key=lambda who: -max(followed[who]["process"], default=0))
    observed = found["observed"]
    by_worker = {} if observed is None else {w["worker"]: w for w in observed["memory"]["workers"]}
    shown = sorted(fullest[:_MOST_LINES])
    # One axis for all: the times of any worker's samples.
    times = sorted({t for who in shown for t in followed[who]["time"]})
    # The colours of the plans, unless two workers share one.
    plans = [] if observed is None else [one["plan"]["workers"] for one in observed["graphs"]]
    workers: list[str] = max(plans, key=len, default=[])
    colours = {who: i for i, who in enumerate(workers)} if len(workers) <= COLOURS else {}
    drawn = []
    for i, who in enumerate(shown):
        at = dict(zip(followed[who]["time"], followed[who]["process"], strict=True))
        colour = colours.get(who, i) % COLOURS
        name = _name(by_worker[who]) if who in by_worker else who
        drawn.append((name, [at.get(t) for t in times], f"c{colour}"))
    limits = {w["limit"] for w in by_worker.values() if w["limit"]}
    marked = {"limit": float(limits.pop())} if len(limits) == 1 else {}
    if len(times) >= _LEAST_POINTS:
        yield element("h3", "Memory of the process over time")
        yield charts.lines([t - began for t in times], drawn, "bytes", marked)
        if len(followed) > len(shown):
            yield _muted(f"The fullest {len(shown)} of {_count(len(followed))} workers.")
    if by_worker:
        yield element("h3", "At the end")
        yield _memory_table(list(by_worker.values()), followed)


def _memory_table(rows: Sequence[Mapping[str, Any]], followed: Mapping[str, Any]) -> Markup:
    titles = {"private": "private results", "disk": "on disk", "used": "used of it"}
    sizes = ("peak", "process", "private", "shared", "mapped", "disk", "limit", "quota", "used")
    columns = {**dict.fromkeys(sizes, _bytes), **dict.fromkeys(("deferrals", "forced"), _count)}
    filled = []
    for row in rows:
        peak = max(followed.get(row["worker"], {}).get("process", ()), default=None)
        filled.append({**row, "peak": peak})
    kept = [name for name in columns if any(row[name] is not None for row in filled)]
    cells = [(_name(row), *(columns[name](row[name]) for name in kept)) for row in filled]
    head = ("worker", *(titles.get(name, name) for name in kept))
    return table(head, cells, range(1, len(kept) + 1))


def transfers(observed: Mapping[str, Any]) -> Iterator[Markup]:
    """Yield the bytes moved between workers."""
    after, before = observed["transfers"], observed["before"].get("transfers", {})
    moved = changes.less(after["moved"], before.get("moved"))
    yield element("h2", "Transfers")
    if not moved:
        yield _muted("No results were moved between workers.")
        return
    bars = [("moved", float(moved), "c0", format_bytes(round(moved)))]
    estimates = [one["estimate"]["estimate"] for one in observed["graphs"]]
    if estimates and all(estimates):
        stock = sum(one["stock"] for one in estimates)
        bars.append(("stock, estimated", stock, "c7", format_bytes(round(stock))))
    yield charts.bars(bars, "bytes", max(value for _, value, _, _ in bars))
    own = changes.numbers(after, before, ("by_handle", "by_comm"))
    if own["by_handle"] is not None:
        yield element(
            "p",
            f"Of what workers received, {_bytes(own['by_handle'])} came by handle (mapped on the "
            f"same host) and {_bytes(own['by_comm'])} by connection.",
        )
    pairs = changes.matrix(after["matrix"], before.get("matrix"))
    kind = after["matrix"]["between"].removesuffix("s")
    yield table(
        (f"from {kind}", f"to {kind}", "bytes", "share"),
        [(a, b, _bytes(value), f"{value / moved:.0%}") for a, b, value in pairs[:_MOST_PAIRS]],
        numbers=(2, 3),
    )
    if any("others" in pair for pair in pairs):
        yield _muted("Others: workers that have left, or that moved little.")
    if len(pairs) > _MOST_PAIRS:
        yield _muted(f"The largest {_MOST_PAIRS} of {_count(len(pairs))} pairs.")


def kernels(observed: Mapping[str, Any]) -> Iterator[Markup]:
    """Yield the fused expressions."""
    after, before = observed["kernels"], observed["before"].get("kernels", {})
    yield element("h2", "Fused kernels")
    if not after["workers_on"]:
        yield _muted("They were off on all workers (marsched.fusion.kernels).")
        return
    own = changes.numbers(after, before, ("runs", "fused", "compiled"))
    saved = after["saved"] - before.get("saved", 0.0)
    if not own["runs"]:
        yield _muted("No task had operations that they can evaluate.")
        return
    yield element(
        "p",
        f"{_count(own['fused'])} of {_count(own['runs'])} chunks were not evaluated by NumPy, "
        f"{_seconds(saved)} of processor time saved, {_seconds(own['compiled'])} spent compiling.",
    )
    rows = changes.expressions(after["expressions"], before.get("expressions", ()))
    if rows:
        yield table(
            ("expression", "of", "by", "chunks", "saved", "compiled", "workers"),
            [
                (
                    element("code", one["text"]),
                    one["dtypes"],
                    one["backend"],
                    _count(one["runs"]),
                    _seconds(one["saved"]),
                    _seconds(one["compiled"]),
                    _count(one["workers"]),
                )
                for one in rows
            ],
            numbers=(3, 4, 5, 6),
        )


def _outages(outages: list[Mapping[str, Any]], began: float) -> Markup:
    return table(
        ("scheduler back at", "ready after", "workers", "missing", "results", "running", "left"),
        [
            (
                _seconds(one["time"] - began),
                "not yet" if one["seconds"] is None else _seconds(one["seconds"]),
                *(_count(one[name]) for name in ("workers", "missing", "held", "running", "left")),
            )
            for one in outages
        ],
        numbers=range(7),
    )


def faults(found: Mapping[str, Any]) -> Iterator[Markup]:
    """Yield lost workers and failures, and the recovery from them."""
    observed = found["observed"]
    after, before = observed["faults"], observed["before"].get("faults", {})
    names = {
        "losses": "workers lost",
        "recovered": "of these recovered",
        "results_lost": "results lost",
        "results_adopted": "results adopted by other workers",
        "computed_again": "operands computed again",
        "retried": "operands tried again",
        "fatal": "operands failed",
        "cancelled": "operands cancelled",
        "interrupted": "operands interrupted",
    }
    own = changes.numbers(after, before, tuple(names))
    rows = [(names[name], _count(value)) for name, value in own.items() if value]
    yield element("h2", "Faults")
    if rows:
        yield table((), rows, numbers=[1])
    else:
        yield _muted("None.")
    lost = [one for one in after.get("last", ()) if one["time"] >= found["began"]]
    if lost:
        yield table(
            ("after", "worker", "results lost", "adopted", "computed again", "recovered after"),
            [
                (
                    _seconds(one["time"] - found["began"]),
                    one["worker"],
                    _count(one["lost"]),
                    _count(one["adopted"]),
                    _count(one["again"]),
                    "not yet" if one["seconds"] is None else _seconds(one["seconds"]),
                )
                for one in lost
            ],
            numbers=(2, 3, 4, 5),
        )
    outages = [one for one in after.get("outages", ()) if one["time"] >= found["began"]]
    if outages:
        yield _outages(outages, found["began"])
    if after["exceptions"]:
        text = ", ".join(f"{hook} {count}" for hook, count in after["exceptions"].items())
        text = f"Exceptions in the plugin's own hooks, each a defect: {text}."
        yield element("p", text, attributes={"class": "failed"})
    if after["failure"]:
        text = f"The observer ended early: {after['failure']}."
        yield element("p", text, attributes={"class": "failed"})


def settings(found: Mapping[str, Any]) -> Iterator[Markup]:
    """Yield the options that differ from their defaults."""
    if found["settings"] is None:
        return
    yield element("h2", "Settings")
    rows = [
        (element("code", f"marsched.{key}"), now, usual) for key, now, usual in found["settings"]
    ]
    if rows:
        yield table(("option", "value", "default"), rows)
    else:
        yield _muted("All options at their defaults.")


def versions(found: Mapping[str, Any]) -> Iterator[Markup]:
    """Yield the versions of the packages, processes with the same ones grouped."""
    yield element("h2", "Versions")
    packages = list(dict.fromkeys(name for own in found["versions"].values() for name in own))
    alike: dict[tuple[str, ...], list[str]] = {}
    for who, own in found["versions"].items():
        alike.setdefault(tuple(own.get(name) or "none" for name in packages), []).append(who)
    rows = []
    for own_versions, processes in alike.items():
        named = [who for who in processes if who in ("client", "scheduler")]
        workers = len(processes) - len(named)
        if workers:
            # A single worker that differs is named.
            several = f"{_count(workers)} workers"
            named.append(several if workers > 1 else processes[-1])
        rows.append((", ".join(named), *own_versions))
    yield table(("", *packages), rows)


def _muted(text: str) -> Markup:
    return element("p", text, attributes={"class": "muted"})


def table(
    header: Sequence[object], rows: Iterable[Sequence[object]], numbers: Iterable[int] = ()
) -> Markup:
    """Return a table that scrolls sideways on a narrow page."""
    return element("div", plain_table(header, rows, numbers), attributes={"class": "wide"})


def _name(row: Mapping[str, Any]) -> str:
    name, worker = row["name"], row["worker"]
    return str(worker if name == worker else f"{name} ({worker})")


def _count(value: float | None) -> str:
    return "" if value is None else f"{int(value):,}"


def _bytes(value: float | None) -> str:
    return "" if value is None else format_bytes(round(value))


def _seconds(value: float | None) -> str:
    if value is None:
        return ""
    sign = "-" if value < 0 else ""
    return sign + (
        format_time(abs(value)).strip() if abs(value) >= 1e-3 else f"{abs(value) * 1e3:.2g} ms"
    )
