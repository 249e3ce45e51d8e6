"""``dask marsched demo``: options, messages and exit codes."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from dask.utils import format_bytes, parse_bytes

from dask_marsched.demo import requirements
from dask_marsched.demo.layout import Layout

if TYPE_CHECKING:
    from dask_marsched.demo.comparison import Comparison
    from dask_marsched.demo.run import Machine, Run
    from dask_marsched.status import Status


class Bytes(click.ParamType[int]):
    """An amount of memory such as ``2GiB``."""

    name = "bytes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number of bytes, or end with a message."""
        try:
            nbytes = int(parse_bytes(value))
        except ValueError:
            nbytes = 0
        if nbytes <= 0:
            self.fail(f"{value!r} is no amount of memory; write e.g. 2GiB", param, ctx)
        return nbytes


OUTPUT = click.Path(dir_okay=False, writable=True, path_type=Path)


@click.command()
@click.option(
    "--store",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory of the Zarr store. Kept afterwards, and reused if it has this size already. "
    "By default a temporary one, deleted at the end.",
)
@click.option("--keep", is_flag=True, help="Keep the temporary store too.")
@click.option("--years", default=3, show_default=True, help="Length of the data (0.5 GiB each).")
@click.option(
    "--resolution", default=1.5, show_default=True, help="Distance of grid points, in degrees."
)
@click.option(
    "--workers", default=4, show_default=True, type=click.IntRange(1), help="Worker processes."
)
@click.option(
    "--threads", default=1, show_default=True, type=click.IntRange(1), help="Threads of a worker."
)
@click.option(
    "--memory-limit", default="2GiB", show_default=True, type=Bytes(), help="Memory of a worker."
)
@click.option(
    "--picture",
    default="demo.png",
    show_default=True,
    type=OUTPUT,
    help="Where to write the table as a picture (PNG).",
)
@click.option("--json", "report", type=OUTPUT, help="Where to write the numbers as JSON.")
def demo(
    store: Path | None,
    keep: bool,
    years: int,
    resolution: float,
    workers: int,
    threads: int,
    memory_limit: int,
    picture: Path,
    report: Path | None,
) -> None:
    """Run three analyses of a Zarr store with stock Dask, then with the plugin.

    Writes temperature and wind over time, latitude and longitude (1.4 GiB by default), analyses
    them with xarray on local worker processes, checks that both ways give the same results bit
    for bit, and prints what each moved, held and took. The exit code is 0 if all went well, 1
    if not: results that differ, or a plugin that was off or failed inside.
    """
    began = time.monotonic()
    try:
        layout = Layout(years=years, resolution=resolution)
        requirements.check_modules()
        requirements.check_memory(layout, workers, memory_limit)
    except (ValueError, requirements.RequirementError) as error:
        raise click.ClickException(str(error)) from None
    for output in (picture, report):
        if output is not None and not output.absolute().parent.is_dir():
            raise click.ClickException(f"{output}: there is no directory {output.parent}")

    # Only now: these need the packages that were checked.
    from dask_marsched.demo.run import Machine

    machine = Machine(workers, threads, memory_limit)
    with _store(store, layout, keep=keep) as path:
        runs = _run_both(path, machine)
    comparisons = _compare(*runs)
    caption = _caption(layout, machine)
    _show(comparisons, caption, picture)
    if report is not None:
        _write_report(report, comparisons, runs, layout, machine)
    click.echo(f"Done in {time.monotonic() - began:.0f} s.")
    if found := faults(comparisons, runs[1].status):
        raise click.ClickException("; ".join(found))
    click.echo("All results are equal bit for bit.")


@contextmanager
def _store(named: Path | None, layout: Layout, *, keep: bool) -> Iterator[Path]:
    """Make the store, or find it; delete it afterwards if it is nobody's."""
    from dask_marsched.demo import store

    directory = None
    if named is None:
        directory = Path(tempfile.mkdtemp(prefix="dask-marsched-demo-"))
        named = directory / "weather.zarr"
    path = named.absolute()
    try:
        if store.is_complete(path, layout):
            click.echo(f"The store is there: {path}")
            store.read_once(path)
        else:
            _write_store(path, layout)
        yield path
    finally:
        if directory is not None and keep:
            click.echo(f"The store is kept: {path}")
        elif directory is not None:
            shutil.rmtree(directory, ignore_errors=True)


def _write_store(path: Path, layout: Layout) -> None:
    from dask_marsched.demo import store

    shape = " x ".join(map(str, layout.shape))
    click.echo(
        f"Writing {format_bytes(layout.nbytes)} to {path}: t, u, v of {shape} in chunks of "
        f"{format_bytes(layout.chunk_nbytes)}"
    )
    try:
        requirements.check_disk(path, layout)
        with click.progressbar(length=layout.nbytes, hidden=not _on_terminal()) as bar:
            store.write(path, layout, bar.update)
    except (OSError, requirements.RequirementError) as error:
        raise click.ClickException(str(error)) from None


def _run_both(path: Path, machine: Machine) -> tuple[Run, Run]:
    from distributed.scheduler import KilledWorker

    from dask_marsched.demo.run import run_all

    runs = []
    for plugin in (False, True):
        click.echo(f"{'With the plugin' if plugin else 'Stock Dask'}, {machine}")

        def announce(title: str) -> None:
            click.echo(f"  {title}")

        try:
            run = run_all(path, machine, plugin=plugin, announce=announce, bars=_on_terminal())
        except KilledWorker as error:
            raise click.ClickException(f"{error} A larger --memory-limit may help.") from error
        except (RuntimeError, TimeoutError) as error:
            raise click.ClickException(f"{type(error).__name__}: {error}") from error
        runs.append(run)
    return runs[0], runs[1]


def _compare(stock: Run, marsched: Run) -> list[Comparison]:
    from dask_marsched.demo.analyses import ANALYSES
    from dask_marsched.demo.comparison import Comparison, same_values

    return [
        Comparison(
            name,
            title,
            stock.measurements[name],
            marsched.measurements[name],
            same_values(stock.results[name], marsched.results[name]),
        )
        for name, title, _ in ANALYSES
    ]


def _show(comparisons: list[Comparison], caption: str, picture: Path) -> None:
    from dask_marsched.demo import table
    from dask_marsched.demo.picture import draw

    click.echo()
    for line in table.lines(comparisons):
        click.echo(line)
    click.echo()
    try:
        draw(picture, comparisons, caption)
    except OSError as error:
        raise click.ClickException(f"cannot write the picture: {error}") from None
    click.echo(f"Picture: {picture}")


def _write_report(
    path: Path,
    comparisons: list[Comparison],
    runs: tuple[Run, Run],
    layout: Layout,
    machine: Machine,
) -> None:
    from dataclasses import asdict

    status = runs[1].status
    content = {
        "analyses": [comparison.to_json() for comparison in comparisons],
        "store": layout.to_json() | {"nbytes": layout.nbytes},
        "cluster": asdict(machine) | {"cpus": os.cpu_count()},
        "status": None if status is None else status.to_dict(),
    }
    path.write_text(json.dumps(content, indent=2) + "\n")
    click.echo(f"Numbers: {path}")


def faults(comparisons: list[Comparison], status: Status | None) -> list[str]:
    """Return what went wrong; an empty list if all is well.

    Parameters
    ----------
    comparisons : list of Comparison
        The outcome of the analyses.
    status : Status or None
        Of the plugin, after the last analysis.
    """
    found = [f"{c.title}: the results differ" for c in comparisons if not c.equal]
    if status is None or not status.active:
        reason = "its status is not known" if status is None else status.reason
        return [*found, f"the plugin was not active: {reason}"]
    return found + [
        f"{count} exceptions in the plugin's hook {hook}; the last one: {status.last_exception}"
        for hook, count in status.exceptions.items()
        if count
    ]


def _caption(layout: Layout, machine: Machine) -> str:
    return (
        f"xarray over {format_bytes(layout.nbytes)} of Zarr (float32, chunks of "
        f"{format_bytes(layout.chunk_nbytes)}), {machine} on {os.cpu_count()} CPUs; "
        f"distributed {version('distributed')}, Python {platform.python_version()}"
    )


def _on_terminal() -> bool:
    return sys.stdout.isatty()


if __name__ == "__main__":
    demo()
