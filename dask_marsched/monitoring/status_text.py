"""Formats what a status says: pairs of a label and a text, and HTML for notebooks."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from dask.utils import format_bytes

from dask_marsched.monitoring.html import Markup, element, table

#: Workers that a notebook shows; ``str()`` of a status shows all.
MOST_WORKERS = 50

_MUTED: Mapping[str, object] = {"style": "opacity:.75"}
_MOST_EXPRESSIONS = 5
#: By part of a worker: labels and names of the sizes shown, and names of the counts.
_SHOWN: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    "quota": (
        {"limit": "limit", "used": "used", "promised": "promised", "queued": "queued"},
        ("evictions", "deferrals", "forced"),
    ),
    "store": ({"in memory": "memory", "spilled": "spilled", "on disk": "disk"}, ()),
    "shared": (
        {
            "published": "published",
            "mapped": "mapped",
            "received by handle": "bytes_by_handle",
            "by TCP": "bytes_by_comm",
        },
        ("ahead", "made_here"),
    ),
    "interrupts": ({}, ("interrupted", "still_running")),
    # Of these only exceptions are shown.
    "messages": ({}, ()),
    "runs": ({}, ()),
}
#: Labels of counts whose names do not explain themselves.
_LABELS = {
    "ahead": "published unasked",
    "made_here": "published without a copy",
    "still_running": "still running",
}
#: Parts of a worker that are shown.
PARTS = (*_SHOWN, "kernels")


def scheduler_facts(status: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what `Status.to_dict` says about the scheduler and the plugin on it."""
    details = status["details"]
    if status["reason"]:
        yield "reason", status["reason"]
    if details.get("registered"):
        yield from _registration(details["registered"])
    if status["policies"]:
        yield from _work(status, details)
    if own := status["versions"].get("scheduler"):
        yield "versions", _pairs(own)
    for text in status["mismatches"]:
        yield "version mismatch", text


def _registration(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "registered", f"by {registrant(found)}, {_moment(found['time'])}"
    before = found["replaced"]
    if before is not None:
        changed = (f"{key} {old} -> {new}" for key, (old, new) in before["changed"].items())
        text = ", ".join(changed) or "of the same configuration"
        yield "in place of", f"{registrant(before)}, {_moment(before['time'])}: {text}"


def registrant(found: Mapping[str, Any]) -> str:
    """Return who registered a plugin, from `Registration.report`."""
    process = f"{found['user']} (process {found['pid']} on {found['host']})"
    if found["by"] == "client":
        return " ".join([process, *(["as", *found["clients"]] if found["clients"] else [])])
    return f"{'--preload of' if found['by'] == 'preload' else 'code in the process of'} {process}"


def _work(status: Mapping[str, Any], details: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    known = ""
    if status["operands_planned"] and status["exact_sizes"] is not None:
        known = f", the sizes of {status['exact_sizes']:.0%} known beforehand"
    yield "policies", _pairs(status["policies"])
    yield "graphs planned", f"{status['graphs_planned']}"
    yield "operands planned", f"{status['operands_planned']}{known}"
    yield "operands placed", f"{status['operands_placed']}"
    fusion = details.get("fusion", {})
    if fusion.get("mode", "off") != "off":
        joined = f"{fusion['operands']} operands into {fusion['into']}"
        yield "joined", f"{joined} ({fusion['mode']})"
    yield "left to Dask", _pairs(status["left_to_dask"])
    yield "exceptions", _pairs(status["exceptions"])
    losses = details.get("recoveries") or {}
    if losses.get("losses"):
        yield (
            "workers lost",
            f"{losses['losses']}, with {losses['results_lost']} results; "
            f"{losses['computed_again']} operands computed again, "
            f"{losses['results_adopted']} results adopted",
        )
    if journal := details.get("journal"):
        yield "journal", _journal_text(journal)
    api = details.get("api") or {}
    if api.get("path") or api.get("reason"):
        yield "JSON API", api["path"] or f"none: {api['reason']}"
    if status["last_exception"]:
        yield "last exception", status["last_exception"]


def _journal_text(found: Mapping[str, Any]) -> str:
    if found["reason"]:
        return f"NO JOURNAL IS KEPT: {found['reason']}"
    text = (
        f"{found['directory']}, {found['graphs']} graphs, {format_bytes(found['bytes_written'])} "
        f"written, {found['clients']} clients come back; not kept: {', '.join(found['not_kept'])}"
    )
    if found["outages"]:
        last = found["outages"][-1]
        text += (
            f"; restarted {_moment(last['time'])} with {last['tasks']} operands: "
            f"{last.get('held', 0)} results were held, {last.get('running', 0)} still ran"
        )
    return text


def part_text(part: str, report: Mapping[str, Any]) -> str:
    """Return the figures of one of `PARTS` from a worker's report, empty where it is off."""
    found = report.get(part)
    if not found:
        return ""
    if part == "kernels":
        return _kernels_text(found)
    sizes, counts = _SHOWN[part]
    shown = [f"{label} {format_bytes(found[name])}" for label, name in sizes.items()]
    shown += [f"{_LABELS.get(name, name)} {found[name]}" for name in counts]
    if found.get("exceptions"):
        shown.append(f"exceptions {_pairs(found['exceptions'])}")
    return ", ".join(shown)


def _kernels_text(found: Mapping[str, Any]) -> str:
    shown = [f"saved {found['saved']:.3g} s of processor time on {found['fused']} chunks"]
    for one in found["expressions"][:_MOST_EXPRESSIONS]:
        text = f"{one['text']} of {one['dtypes']}: {one['backend']}, {one['runs']} chunks"
        given_up = [f"{name} gave up ({why})" for name, why in one["given_up"].items()]
        shown.append(", ".join([text, f"{one['saved']:.3g} s saved", *given_up]))
    shown += [f"without {name}: {why}" for name, why in found["missing"].items()]
    if found["exceptions"]:
        shown.append(f"exceptions {_pairs(found['exceptions'])}")
    return " | ".join(shown)


def worker_text(report: Mapping[str, Any]) -> str:
    """Return the figures of all parts of a worker in one line."""
    reasons = report["reasons"]
    texts = []
    for part in PARTS:
        text = part_text(part, report)
        if text:
            texts.append(f"{part} {text}")
        elif reasons.get(part):
            texts.append(f"no {part}: {reasons[part]}")
    texts += [f"no {part}: {why}" for part, why in reasons.items() if part not in PARTS]
    return "; ".join(texts)


def status_view(status: Mapping[str, Any]) -> Markup:
    """Return `Status.to_dict` as HTML: the scheduler, then a row for each worker."""
    state = "active" if status["active"] else "not active"
    parts: list[object] = [
        element("div", element("strong", "dask_marsched"), f" on {status['scheduler']}: {state}"),
        table((), list(scheduler_facts(status))),
    ]
    workers = list(_workers(status))
    if workers:
        rows = workers[:MOST_WORKERS]
        used = [name for name in ("worker", *PARTS, "off") if any(row.get(name) for row in rows)]
        parts.append(table(used, [[row.get(name, "") for name in used] for row in rows]))
        if len(workers) > MOST_WORKERS:
            more = f"and {len(workers) - MOST_WORKERS} workers more: print(status) shows them"
            parts.append(element("div", more, attributes=_MUTED))
    return element("div", *parts)


def _workers(status: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    for address, report in status["workers"].items():
        off = "; ".join(f"{part}: {why}" for part, why in report["reasons"].items())
        parts = {part: part_text(part, report) for part in PARTS}
        yield {"worker": address, "off": off, **parts}
    for address, off_there in status["workers_lacking"].items():
        yield {
            "worker": address,
            "off": f"not installed; off: {', '.join(off_there) or 'nothing'}",
        }
    for address, why in status["unreachable"].items():
        yield {"worker": address, "off": f"not reached: {why}"}


def _pairs(mapping: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in mapping.items()) or "none"


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
