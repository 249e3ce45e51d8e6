"""Implements the command ``dask marsched demo``: options, messages and exit codes."""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from dask.utils import format_bytes

from dask_marsched.demo.layout import Layout, layout_for
from dask_marsched.installation import how_to_install

if TYPE_CHECKING:
    from dask_marsched.bench.metrics import Measurement
    from dask_marsched.demo.comparison import Comparison


MODULES = ("xarray", "zarr", "matplotlib")


@click.command()
@click.option(
    "--resolution",
    type=float,
    help="Distance of grid points, in degrees: 2 (a year of 1.6 GiB, chunks of 22 MiB) or, where "
    "memory is short, 3 by default.",
)
@click.option(
    "--picture",
    default="demo.png",
    show_default=True,
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Where to write the table as a picture (PNG).",
)
def demo(resolution: float | None, picture: Path) -> None:
    """Run three analyses with stock Dask and with the plugin, and kill a worker in one.

    Writes a year of hourly temperature and wind as a temporary Zarr store, analyses it with
    xarray on two clusters of four worker processes in turn, checks that both give the same
    results bit for bit, and prints what each took, moved, held and computed again. The exit code
    is 0 if all went well, 1 if not: results that differ, or a plugin that was off or failed
    inside.
    """
    began = time.monotonic()
    if not picture.absolute().parent.is_dir():
        raise click.ClickException(f"{picture}: there is no directory {picture.parent}")
    try:
        check_modules()
        layout = layout_for(resolution, Path(tempfile.gettempdir()))
    except ValueError as error:
        raise click.ClickException(str(error)) from None

    # Imported after the check of the packages that they need.
    from dask_marsched.bench.report import facts, text_table
    from dask_marsched.demo import comparison
    from dask_marsched.demo.picture import draw
    from dask_marsched.demo.run import WORKERS, run_all

    # Killed workers leak semaphores; only this option reaches the process that warns of it.
    sys.warnoptions.append("ignore:resource_tracker")
    with _store(layout) as path:
        outcome = run_all(path, _progress, click.echo)
    comparisons = comparison.compare(outcome.measurements)
    click.echo(f"\n{text_table(comparison.cells(comparisons))}\n")
    sentences = list(comparison.sentences(comparisons))
    click.echo("\n".join(sentences))
    found = facts("")["versions"]
    caption = (
        f"xarray over {format_bytes(layout.nbytes)} of Zarr, float32 in chunks of "
        f"{format_bytes(layout.chunk_nbytes)}; {WORKERS} worker processes on {os.cpu_count()} "
        f"cores; distributed {found['distributed']}, Python {found['python']}"
    )
    draw(picture, comparisons, sentences, caption)
    click.echo(f"Picture: {picture}. Done in {time.monotonic() - began:.0f} s.")
    if wrong := faults(comparisons, outcome.reports):
        raise click.ClickException("; ".join(wrong))
    click.echo("All results are equal bit for bit.")


def check_modules() -> None:
    """Raise a ClickException if an optional package is not installed."""
    missing = [name for name in MODULES if importlib.util.find_spec(name) is None]
    if missing:
        raise click.ClickException(
            f"The demo needs {', '.join(missing)}: run {how_to_install('demo')}"
        )


def _progress(measurement: Measurement) -> None:
    from dask_marsched.bench.metrics import STOCK

    side = "stock Dask" if measurement.policy == STOCK else "dask-marsched"
    if measurement.error is not None:
        raise click.ClickException(f"{measurement.workload}, {side}: {measurement.error}")
    click.echo(f"  {measurement.workload:30} {side:14} {measurement.seconds:6.1f} s")


@contextmanager
def _store(layout: Layout) -> Iterator[Path]:
    """Write the store, and delete it afterwards."""
    from dask_marsched.demo import store

    with tempfile.TemporaryDirectory(
        prefix="dask-marsched-demo-", ignore_cleanup_errors=True
    ) as directory:
        path = Path(directory) / "weather.zarr"
        shape = " x ".join(map(str, layout.shape))
        click.echo(
            f"Writing {format_bytes(layout.nbytes)} to {path}: t, u, v of {shape} in chunks "
            f"of {format_bytes(layout.chunk_nbytes)}"
        )
        try:
            store.write(path, layout)
            store.read_once(path)
        except OSError as error:
            raise click.ClickException(str(error)) from None
        yield path


def faults(comparisons: list[Comparison], reports: list[dict[str, Any]]) -> list[str]:
    """Return the faults in results and in the plugin's reports after each round."""
    found = [f"{c.title}: the results differ" for c in comparisons if not c.same]
    if not reports:
        found.append("the plugin was not active")
    for report in reports:
        if not report["active"]:
            found.append(f"the plugin was not active: {report['reason']}")
        found += [
            f"{count} exceptions in the plugin's hook {hook}; the last one: "
            f"{report['last_exception']}"
            for hook, count in report["exceptions"].items()
            if count
        ]
    return found
