"""What notebooks show of the plugin and of its status."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dask.utils import format_bytes

from dask_marsched.config import Settings, changed_options
from dask_marsched.monitoring.html import Markup, element, joined, table

#: Workers, and expressions of each, that a notebook shows; ``str()`` of a status shows all.
MOST_WORKERS = 50
_MOST_EXPRESSIONS = 3

_MUTED: Mapping[str, object] = {"style": "opacity:.75"}


def plugin_view(report: Mapping[str, Any], settings: Settings) -> Markup:
    """Return a plugin as HTML: whether it is at work, its policies, options set otherwise.

    Parameters
    ----------
    report
        What the plugin reports of itself.
    settings
        Its settings.
    """
    state = "active" if report["active"] else f"not active: {report['reason']}"
    rows: list[tuple[object, object]] = [(kind, name) for kind, name in report["policies"].items()]
    rows += [
        (element("code", f"marsched.{key}"), _option(now, usual))
        for key, now, usual in changed_options(settings)
    ]
    parts: list[object] = [
        element("div", element("strong", "MarsSchedulerPlugin"), f" — {state}"),
        table((), rows),
    ]
    if not report["active"]:
        # Registering sends a copy: the one at work is the scheduler's.
        note = "What is registered on a scheduler is a copy: dask_marsched.status(client) tells."
        parts.append(element("div", note, attributes=_MUTED))
    return element("div", *parts)


def _option(now: object, usual: object) -> Markup:
    return joined([str(now), " ", element("span", f"(default {usual})", attributes=_MUTED)])


def status_view(status: Mapping[str, Any]) -> Markup:
    """Return a status, as plain values, as HTML: the scheduler, then a row for each worker."""
    state = "active" if status["active"] else "not active"
    parts: list[object] = [
        element("div", element("strong", "dask_marsched"), f" on {status['scheduler']}: {state}"),
        table((), _facts(status)),
    ]
    workers = list(_workers(status))
    if workers:
        columns = ("worker", "quota", "store", "received", "interrupts", "kernels", "off")
        rows = [[row.get(name, "") for name in columns] for row in workers[:MOST_WORKERS]]
        used = [i for i, _ in enumerate(columns) if any(row[i] for row in rows)]
        parts.append(table([columns[i] for i in used], [[row[i] for i in used] for row in rows]))
        if len(workers) > MOST_WORKERS:
            more = f"and {len(workers) - MOST_WORKERS} workers more: print(status) shows them"
            parts.append(element("div", more, attributes=_MUTED))
    return element("div", *parts)


def _facts(status: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    if status["reason"]:
        yield "reason", status["reason"]
    if status["policies"]:
        yield "policies", _pairs(status["policies"])
        share = f", {status['exact_sizes']:.0%} of known size" if status["exact_sizes"] else ""
        yield (
            "operands",
            f"{status['operands_planned']} planned in {status['graphs_planned']} graphs{share}; "
            f"{status['operands_placed']} placed",
        )
        if status["left_to_dask"]:
            yield "left to Dask", _pairs(status["left_to_dask"])
    losses = status["details"].get("recoveries") or {}
    if losses.get("losses"):
        yield (
            "workers lost",
            f"{losses['losses']}; {losses['computed_again']} operands computed again, "
            f"{losses['results_adopted']} results adopted",
        )
    if status["exceptions"]:
        yield "exceptions", f"{_pairs(status['exceptions'])}; the last: {status['last_exception']}"
    if own := status["versions"].get("scheduler"):
        yield "versions", _pairs(own)
    for text in status["mismatches"]:
        yield "version mismatch", text


def _workers(status: Mapping[str, Any]) -> Iterator[dict[str, object]]:
    for address, found in status["workers"].items():
        yield {"worker": address, **dict(_parts(found))}
    for address, parts in status["workers_lacking"].items():
        yield {"worker": address, "off": f"not installed; off: {', '.join(parts) or 'nothing'}"}
    for address, why in status["unreachable"].items():
        yield {"worker": address, "off": f"not reached: {why}"}


def _parts(found: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    if quota := found.get("quota"):
        yield (
            "quota",
            f"{format_bytes(quota['used'])} used, {format_bytes(quota['promised'])} promised of "
            f"{format_bytes(quota['limit'])}; {quota['deferrals']} deferred, "
            f"{quota['forced']} forced",
        )
    if store := found.get("store"):
        yield (
            "store",
            f"{format_bytes(store['memory'])} in memory, {format_bytes(store['disk'])} on disk",
        )
    if shared := found.get("shared"):
        yield (
            "received",
            f"{format_bytes(shared['bytes_by_handle'])} by handle, "
            f"{format_bytes(shared['bytes_by_comm'])} by TCP",
        )
    if interrupts := found.get("interrupts"):
        yield "interrupts", f"{interrupts['interrupted']}"
    if kernels := found.get("kernels"):
        shown = [
            f"{one['text']}: {one['backend']}" for one in kernels["expressions"][:_MOST_EXPRESSIONS]
        ]
        saved = f"{kernels['saved']:.3g} s saved on {kernels['fused']} chunks"
        yield "kernels", "; ".join([saved, *shown])
    reasons = found.get("reasons") or {}
    if reasons:
        yield "off", "; ".join(f"{part}: {why}" for part, why in reasons.items())


def _pairs(mapping: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in mapping.items())
