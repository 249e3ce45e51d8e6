"""The benchmarks whose outcome is one table: ``--failover``, ``--cancel``, ``--transfer``."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from typing import Any

import click
from dask.utils import parse_bytes

from . import cancelling, failover, report
from . import transfer as transfer_benchmark
from .workloads import Parameters


def kill(options: Any, chosen: tuple[str, ...], command: str) -> None:
    """Run the failover benchmark; ends with 1 if a run failed or a result was another one."""

    def show(k: failover.Killed) -> None:
        outcome = f"FAILED: {k.error}" if k.error else f"{k.seconds:.2f} s, {k.again} again"
        click.echo(f"  {k.repetition + 1}  {k.workload:<18}{k.contestant:<8}{outcome}", err=True)

    runs = failover.run(
        chosen,
        options.repeat,
        Parameters(options.size, parse_bytes(options.chunk)),
        workers=options.workers,
        timeout=options.timeout,
        progress=show,
    )
    _publish(options, command, failover.cells(runs), {"runs": list(map(asdict, runs))})
    if any(k.error or not k.same for k in runs):
        raise SystemExit(1)


def cancel(options: Any, command: str) -> None:
    """Run the cancelling benchmark; ends with 1 if a worker did not survive it."""
    found = cancelling.run()
    _publish(options, command, cancelling.cells(found), {"cancels": list(map(asdict, found))})
    if not all(c.healthy for c in found):
        raise SystemExit(1)


def transfer(options: Any, command: str) -> None:
    """Run the transfer benchmark; ends with 1 if chunks were not mapped."""
    measured = transfer_benchmark.run(options.repeat)
    fetches = {"fetches": list(map(asdict, measured))}
    _publish(options, command, transfer_benchmark.cells(measured), fetches)
    if any(m.mapped < m.fetches for m in measured):
        raise SystemExit(1)


def _publish(options: Any, command: str, table: list[list[str]], found: dict[str, Any]) -> None:
    click.echo(report.text_table(table))
    if options.json_path:
        facts = {"command": command, "cores": os.cpu_count(), "versions": report.versions()}
        options.json_path.write_text(json.dumps({**facts, **found}, indent=1) + "\n")
    if options.markdown_path:
        shown = [report.made_by(command), report.markdown_table(table)]
        options.markdown_path.write_text("\n\n".join(shown) + "\n")
