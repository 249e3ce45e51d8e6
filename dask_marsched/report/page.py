"""Renders the report as one HTML page without scripts or external files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from dask.utils import format_time

from dask_marsched.monitoring.html import Markup, element
from dask_marsched.report import sections
from dask_marsched.report.changes import meanwhile
from dask_marsched.report.style import STYLE

#: Characters that could end a script element, as JSON escapes.
_HARMLESS = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


def html(found: Mapping[str, Any]) -> str:
    """Return the page of `ReportRecorder.result` with the entries of `performance_report`."""
    head = element(
        "head",
        Markup('<meta charset="utf-8">'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        Markup('<meta name="color-scheme" content="light dark">'),
        # Without it browsers request an icon.
        Markup('<link rel="icon" href="data:,">'),
        element("title", found["title"]),
        element("style", Markup(STYLE)),
    )
    body = element("body", element("main", *_parts(found), _data(found)))
    return f"<!DOCTYPE html>\n{element('html', head, body, attributes={'lang': 'en'})}\n"


def _parts(found: Mapping[str, Any]) -> Iterator[Markup]:
    yield element("h1", found["title"])
    took = format_time(found["ended"] - found["began"]).strip()
    yield sections.muted(
        f"{found['when']}; {took} on {found['scheduler']}, {found['workers']} workers"
    )
    if found["error"]:
        yield sections.paragraph("failed", f"It failed: {found['error']}")
    if reason := sections.nothing(found):
        yield sections.paragraph("note", reason)
    observed = None if found["observed"] is None else meanwhile(found["observed"])
    found = {**found, "observed": observed}
    if observed is not None:
        yield sections.summary(found)
        if not observed["from_start"]:
            yield sections.paragraph("note", sections.NOT_FROM_START)
        yield from sections.graphs(observed)
    yield from sections.memory(found)
    if observed is not None:
        yield from sections.transfers(observed)
        yield from sections.kernels(observed)
        yield from sections.faults(found)
    yield from sections.settings(found)
    yield from sections.versions(found)
    if found["code"]:
        yield element("h2", "Code")
        yield element("pre", found["code"])


def _data(found: Mapping[str, Any]) -> Markup:
    """Return all figures as JSON for programs, but for the pictures of plans."""
    figures = {name: value for name, value in found.items() if name != "observed"}
    if found["observed"] is not None:
        graphs = [
            {name: value for name, value in one.items() if name != "plan"}
            for one in found["observed"]["graphs"]
        ]
        figures["observed"] = {**found["observed"], "graphs": graphs}
    text = json.dumps(figures, default=str)
    for character, harmless in _HARMLESS.items():
        text = text.replace(character, harmless)
    attributes = {"type": "application/json", "id": "marsched-report"}
    return element("script", Markup(text), attributes=attributes)
