"""Prepares what the options ask for, and publishes tables on the terminal, as JSON and Markdown."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from benchmarks.options import Options
from dask_marsched.bench import command, report
from dask_marsched.bench.cluster import Setting
from dask_marsched.bench.workloads import Workload


def prepare(options: Options, scratch: Path) -> tuple[tuple[Workload, ...], Setting]:
    """Return the selected workloads and the clusters' setting; UsageError for invalid options."""
    selected, parameters = command.prepare(
        options.select, options.kinds, options.size, options.chunk, scratch
    )
    return selected, Setting(options.workers, options.threads, parameters, options.timeout)


def publish(
    options: Options, tables: Sequence[report.Cells], found: Mapping[str, Any], *notes: str
) -> None:
    """Print tables and notes unless empty, and write the files of ``--json`` and ``--markdown``."""
    tables = [table for table in tables if len(table) > 1]
    notes = tuple(filter(None, notes))
    click.echo("\n\n".join([*map(report.text_table, tables), *notes]))
    if options.json_path:
        content = {**report.facts(options.command), **found}
        options.json_path.write_text(json.dumps(content, indent=1) + "\n")
    if options.markdown_path:
        page = [made_by(options.command), *map(markdown_table, tables), *notes]
        options.markdown_path.write_text("\n\n".join(page) + "\n")


def exit_if(wrong: bool) -> None:
    """Exit with 1 if something went wrong."""
    if wrong:
        raise SystemExit(1)


def made_by(command_line: str) -> str:
    """Return a sentence with the command, cores and versions that made a table."""
    found = report.facts(command_line)
    made = ", ".join(f"{name} {number}" for name, number in found["versions"].items())
    return f"Made by `{command_line}` on {found['cores']} cores with {made}."


def markdown_table(cells: report.Cells) -> str:
    """Lay cells out as a Markdown table."""
    rule = [":--" if title in report.TEXTS else "--:" for title in cells[0]]
    return "\n".join("| " + " | ".join(line) + " |" for line in [cells[0], rule, *cells[1:]])
