"""Implements the command ``dask marsched simulate``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
from dask.utils import format_bytes

from dask_marsched.installation import how_to_install
from dask_marsched.policies import registry
from dask_marsched.simulation.amounts import Amount
from dask_marsched.simulation.cluster.faults import Fault, read_fault
from dask_marsched.simulation.graph_file import load_graph
from dask_marsched.simulation.options import cluster_options
from dask_marsched.simulation.report.report import SimulationReport
from dask_marsched.simulation.simulate import simulate as run

_OUTPUT = click.Path(dir_okay=False, writable=True, path_type=Path)


@click.command()
@click.argument("graph", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@cluster_options
@click.option(
    "--policy",
    "policies",
    multiple=True,
    type=click.Choice(["stock", "default", *registry.names("assignment")]),
    help="Policy that places the tasks; may be given several times. [default: stock and default]",
)
@click.option(
    "--fault",
    "faults",
    multiple=True,
    type=Amount("fault", read_fault),
    help="Fault to inject, such as kill:3@10s, join:4@12s, pause:0@1s:5s, slow:2@0s:4 or "
    "slow-link:2@0s:4 (workers are numbered from 0); may be given several times.",
)
@click.option("--seed", default=0, show_default=True, help="Seed of the random noise.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option("--trace", type=_OUTPUT, help="File for a trace that https://ui.perfetto.dev opens.")
@click.option(
    "--plot", type=_OUTPUT, help="File for a figure of memory and activity (PNG, PDF...)."
)
def simulate(
    graph: Path,
    policies: tuple[str, ...],
    faults: tuple[Fault, ...],
    as_json: bool,
    trace: Path | None,
    plot: Path | None,
    **cluster: Any,
) -> None:
    """Simulate the computation of the graph in the file GRAPH on a cluster of any size.

    dask_marsched.save_graph writes such files. They hold pickled code that runs when they are
    loaded: use only files whose origin you trust. With several policies the files of --trace and
    --plot get the policy's name before their ending. The exit code is 0 if all went well, 1 if
    the computation cannot be simulated, 2 for wrong options.
    """
    for option, output in (("--trace", trace), ("--plot", plot)):
        if output is not None and not output.absolute().parent.is_dir():
            raise click.BadParameter(f"there is no directory {output.parent}", param_hint=option)
    if plot is not None:
        _check_picture(plot)
    chosen = tuple(dict.fromkeys(policies)) or ("stock", "default")
    try:
        collection = load_graph(graph, trusted=True)
    except (OSError, ValueError) as error:
        raise click.ClickException(str(error)) from None
    reports = []
    for policy in chosen:
        try:
            report = run(collection, policy=policy, faults=faults, **cluster)
        except (TypeError, ValueError, NotImplementedError) as error:
            raise click.ClickException(str(error)) from None
        except RuntimeError as error:
            raise click.ClickException(f"{policy}: {error}") from None
        reports.append(report)
        _write(report, trace, plot, several=len(chosen) > 1)
    if as_json:
        click.echo(json.dumps({"reports": [report.to_dict() for report in reports]}, indent=2))
    else:
        click.echo("\n".join(comparison_lines(reports)))


def _check_picture(path: Path) -> None:
    try:
        from matplotlib.backend_bases import FigureCanvasBase
    except ModuleNotFoundError as error:
        raise click.ClickException(
            f"--plot needs {error.name}, which is not installed: run {how_to_install('simulate')}"
        ) from None
    accepted = sorted(FigureCanvasBase.get_supported_filetypes())
    if path.suffix.removeprefix(".").lower() not in accepted:
        raise click.BadParameter(
            f"{path} has no ending that tells the kind of picture; accepted are "
            + ", ".join(f".{ending}" for ending in accepted),
            param_hint="--plot",
        )


def _write(report: SimulationReport, trace: Path | None, plot: Path | None, several: bool) -> None:
    def named(path: Path) -> Path:
        return path.with_stem(f"{path.stem}-{report.policy}") if several else path

    try:
        if trace is not None:
            report.to_chrome_trace(named(trace))
        if plot is not None:
            report.plot().savefig(named(plot), dpi=120)
    except OSError as error:
        raise click.ClickException(str(error)) from None


_WIDTH = 14


def comparison_lines(reports: Sequence[SimulationReport]) -> Iterator[str]:
    """Yield the lines of a table with a column for each report.

    Of two reports a third column shows the second as a multiple of the first.
    """
    two = len(reports) == 2
    yield reports[0].setting
    yield ""
    columns = [report.quantities() for report in reports]
    width = max(len(name) for name, _, _ in columns[0]) + 2
    heads = [report.policy for report in reports] + ["ratio"] * two
    yield " " * width + "".join(f"{head:>{_WIDTH}}" for head in heads)
    for row in zip(*columns, strict=True):
        cells = [text for _, _, text in row]
        if two:
            (_, first, _), (_, second, _) = row
            cells.append(f"{second / first:.2f}" if first else "-")
        yield row[0][0].ljust(width) + "".join(f"{cell:>{_WIDTH}}" for cell in cells)
    for report in reports:
        yield ""
        yield f"{report.policy}: most memory is held by"
        for group in report.peak_groups():
            held = f"{format_bytes(group.nbytes):>12}  {group.share:4.0%}"
            yield f"  {held}  {group.group} ({group.count:,} results)"
    notes = dict.fromkeys(text for report in reports for text in report.not_simulated)
    if notes:
        yield ""
        yield "not simulated:"
        yield from (f"  {text}" for text in notes)
