"""Makes the sections of a report from the observer's figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dask.utils import format_time

from dask_marsched.monitoring import tables
from dask_marsched.monitoring.html import Markup, element, table
from dask_marsched.monitoring.tables import count, seconds, size
from dask_marsched.report import charts
from dask_marsched.report.changes import FAULTS
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
    graphs = observed["graphs"]
    operands = count(sum(g["operands"] for g in graphs))
    tiles = [
        (operands, f"operands in {count(len(graphs), 'graph')}"),
        (size(observed["transfers"]["moved"]), "moved between workers"),
    ]
    stock = [g["estimate"]["estimate"] for g in graphs]
    if graphs and all(stock):
        tiles.append((size(sum(one["stock"] for one in stock)), "stock Dask, estimated"))
    peak = max((max(s["process"], default=0) for s in found["followed"].values()), default=0)
    tiles.append((size(peak), "most that a worker took"))
    kernels = observed["kernels"]
    if kernels["workers_on"]:
        tiles.append((seconds(kernels["saved"]), "saved by fused kernels"))
    if losses := observed["faults"]["losses"]:
        tiles.append((count(losses), "workers lost" if losses > 1 else "worker lost"))
    shown = [element("div", element("b", value), element("span", name)) for value, name in tiles]
    return element("div", *shown, attributes={"class": "tiles"})


def graphs(observed: Mapping[str, Any]) -> Iterator[Markup]:
    """Yield the plan and the operands of each graph."""
    if observed["more_graphs"]:
        yield muted(f"{count(observed['more_graphs'])} earlier graphs are not shown.")
    for graph in observed["graphs"]:
        took = (graph["finished"] or graph["over_time"]["series"]["time"][-1]) - graph["planned"]
        end = format_time(took).strip() if graph["done"] else "not done when the report was made"
        yield element("h2", f"Graph {graph['number']}: {count(graph['operands'])} operands, {end}")
        yield muted(_planned(graph))
        picture = graph["plan"]
        if picture["cells"]:
            yield element("h3", "Plan: where operands ran")
            yield charts.plan(picture)
            if picture["aggregated"]:
                yield muted("A cell stands for several operands; its colour is that of most.")
        yield element("h3", "Operands by state")
        yield from _states(graph)
        if causes := graph["over_time"]["causes"]:
            yield _wide(tables.causes(causes))


def _planned(graph: Mapping[str, Any]) -> str:
    policies = ", ".join(f"{kind} {name}" for kind, name in graph["policies"].items())
    parts = [f"{count(graph['initial'])} initial operands in {count(graph['units'], 'unit')}"]
    if graph["replanned"]:
        parts.append(f"replanned {count(graph['replanned'], 'time')}")
    parts.append(f"{size(graph['moved'])} of its results moved")
    found = graph["estimate"]
    if found["estimate"] is not None:
        one = found["estimate"]
        parts.append(
            f"stock Dask would have moved {size(one['stock'])}: an estimate, which "
            f"forecasts {size(one['plan'])} for this plan"
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
    now = ", ".join(f"{count(number)} {name}" for name, number in counts.items() if number)
    yield muted(f"At the end: {now or 'none is left'}.")


def memory(found: Mapping[str, Any]) -> Iterator[Markup]:
    """Yield the memory of the workers: over time, and by its parts."""
    followed = found["followed"]
    yield element("h2", "Memory of the workers")
    if not followed:
        yield paragraph("note", "There were no workers.")
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
            yield muted(f"The fullest {len(shown)} of {count(len(followed))} workers.")
    if by_worker:
        yield element("h3", "At the end")
        yield _memory_table(list(by_worker.values()), followed)


def _memory_table(rows: Sequence[Mapping[str, Any]], followed: Mapping[str, Any]) -> Markup:
    titles = {"private": "private results", "disk": "on disk", "used": "used of it"}
    sizes = ("peak", "process", "private", "shared", "mapped", "disk", "limit", "quota", "used")
    columns = {**dict.fromkeys(sizes, size), **dict.fromkeys(("deferrals", "forced"), count)}
    filled = []
    for row in rows:
        peak = max(followed.get(row["worker"], {}).get("process", ()), default=None)
        filled.append({**row, "peak": peak})
    kept = [name for name in columns if any(row[name] is not None for row in filled)]
    cells = [(_name(row), *(columns[name](row[name]) for name in kept)) for row in filled]
    head = ("worker", *(titles.get(name, name) for name in kept))
    return _wide(table(head, cells, range(1, len(kept) + 1)))


def transfers(observed: Mapping[str, Any]) -> Iterator[Markup]:
    """Yield the bytes moved between workers."""
    found = observed["transfers"]
    moved, pairs = found["moved"], found["pairs"]
    yield element("h2", "Transfers")
    if not moved:
        yield muted("No results were moved between workers.")
        return
    bars = [("moved", float(moved), "c0", size(moved))]
    estimates = [one["estimate"]["estimate"] for one in observed["graphs"]]
    if estimates and all(estimates):
        stock = sum(one["stock"] for one in estimates)
        bars.append(("stock, estimated", stock, "c7", size(stock)))
    yield charts.bars(bars, "bytes", max(value for _, value, _, _ in bars))
    if found["by_handle"] is not None:
        yield element(
            "p",
            f"Of what workers received, {size(found['by_handle'])} came by handle (mapped on the "
            f"same host) and {size(found['by_comm'])} by connection.",
        )
    kind = found["matrix"]["between"].removesuffix("s")
    rows = [(a, b, size(value), f"{value / moved:.0%}") for a, b, value in pairs[:_MOST_PAIRS]]
    yield _wide(table((f"from {kind}", f"to {kind}", "bytes", "share"), rows, (2, 3)))
    if any("others" in pair for pair in pairs):
        yield muted("Others: workers that have left, or that moved little.")
    if len(pairs) > _MOST_PAIRS:
        yield muted(f"The largest {_MOST_PAIRS} of {count(len(pairs))} pairs.")


def kernels(observed: Mapping[str, Any]) -> Iterator[Markup]:
    """Yield the fused expressions."""
    found = observed["kernels"]
    yield element("h2", "Fused kernels")
    if not found["workers_on"]:
        yield muted("They were off on all workers (marsched.fusion.kernels).")
    elif not found["runs"]:
        yield muted("No task had operations that they can evaluate.")
    else:
        yield element(
            "p",
            f"{count(found['fused'])} of {count(found['runs'])} chunks were not evaluated by "
            f"NumPy, {seconds(found['saved'])} of processor time saved, "
            f"{seconds(found['compiled'])} spent compiling.",
        )
        if found["expressions"]:
            yield _wide(tables.expressions(found["expressions"]))


def _outages(outages: list[Mapping[str, Any]], began: float) -> Markup:
    counts = {name: name for name in ("workers", "missing", "held", "running", "left")}
    counts["held"] = "results"
    rows = [
        (
            seconds(one["time"] - began),
            "not yet" if one["seconds"] is None else seconds(one["seconds"]),
            *(count(one[name]) for name in counts),
        )
        for one in outages
    ]
    return table(("scheduler back at", "ready after", *counts.values()), rows, range(7))


def faults(found: Mapping[str, Any]) -> Iterator[Markup]:
    """Yield lost workers and failures, and the recovery from them."""
    own, began = found["observed"]["faults"], found["began"]
    rows = [(label, count(own[name])) for name, label in FAULTS.items() if own[name]]
    yield element("h2", "Faults")
    yield _wide(table((), rows, (1,))) if rows else muted("None.")
    if lost := [one for one in own["last"] if one["time"] >= began]:
        yield _wide(tables.losses(lost, "after", lambda time: seconds(time - began)))
    if outages := [one for one in own["outages"] if one["time"] >= began]:
        yield _wide(_outages(outages, began))
    if own["exceptions"]:
        text = ", ".join(f"{hook} {number}" for hook, number in own["exceptions"].items())
        yield paragraph("failed", f"Exceptions in the plugin's own hooks, each a defect: {text}.")
    if own["failure"]:
        yield paragraph("failed", f"The observer ended early: {own['failure']}.")


def settings(found: Mapping[str, Any]) -> Iterator[Markup]:
    """Yield the options that differ from their defaults."""
    if found["settings"] is None:
        return
    yield element("h2", "Settings")
    rows = [
        (element("code", f"marsched.{key}"), now, usual) for key, now, usual in found["settings"]
    ]
    shown = _wide(table(("option", "value", "default"), rows))
    yield shown if rows else muted("All options at their defaults.")


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
            named.append(count(workers, "worker") if workers > 1 else processes[-1])
        rows.append((", ".join(named), *own_versions))
    yield _wide(table(("", *packages), rows))


def paragraph(style: str, text: str) -> Markup:
    """Return a paragraph of a class of the style sheet."""
    return element("p", text, attributes={"class": style})


def muted(text: str) -> Markup:
    """Return a paragraph in a lighter colour."""
    return paragraph("muted", text)


def _wide(table: Markup) -> Markup:
    """Let a table scroll sideways on a narrow page."""
    return element("div", table, attributes={"class": "wide"})


def _name(row: Mapping[str, Any]) -> str:
    name, worker = row["name"], row["worker"]
    return str(worker if name == worker else f"{name} ({worker})")
