"""Implements the command ``dask marsched explain``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from dask_marsched.simulation.explain.explanation import Explanation
from dask_marsched.simulation.explain.script import ScriptError, explain_script
from dask_marsched.simulation.options import cluster_options, duration_type


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("script", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Go on after the first computation: compute with local threads, explain each.",
)
@cluster_options
@click.option(
    "--max-workers",
    type=click.IntRange(1),
    metavar="N",
    help="Most workers that are tried. [default: four times --workers, at least 16]",
)
@click.option(
    "--budget", type=duration_type(), help="What may be paid, as time of one worker, such as '3h'."
)
@click.option(
    "--deadline", type=duration_type(), help="When it must be done, such as '10 minutes'."
)
@click.option(
    "--time-limit",
    type=duration_type(zero=True),
    default="100s",
    show_default=True,
    help="For each explanation; simulations that do not fit into it are named and left out.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
@click.pass_context
def explain(
    context: click.Context,
    /,
    script: Path,
    arguments: tuple[str, ...],
    everything: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Explain what the Python program SCRIPT would compute with Dask, before it does.

    SCRIPT runs with ARGUMENTS up to its first computation. That is explained on one page instead
    of being done, and ends the run: no cluster is started, nothing is computed, and nothing is
    written but by SCRIPT itself. Clients and clusters that SCRIPT makes are stand-ins; their
    sizes are the defaults of the options below. Options stand before SCRIPT.

    The exit code is 0 if something was explained, 1 if SCRIPT computes nothing, fails, or cannot
    be simulated, 2 for wrong options. If SCRIPT itself ends with an exit code it is that one.
    """
    given = {
        name: value
        for name, value in options.items()
        if context.get_parameter_source(name) != ParameterSource.DEFAULT
    }
    pages: list[dict[str, Any]] = []

    def show(where: str, explanation: Explanation) -> None:
        if as_json:
            pages.append({"computation": where, **explanation.to_dict()})
        else:
            click.echo(f"{where}\n\n{explanation}\n")

    try:
        count = explain_script(script, arguments, everything=everything, show=show, **given)
    except ScriptError as error:
        click.echo(error.report, err=True, nl=False)
        raise SystemExit(1) from None
    except (TypeError, ValueError, RuntimeError) as error:
        raise click.ClickException(str(error)) from None
    finally:
        if as_json and pages:
            click.echo(json.dumps(pages, indent=2))
    if not count:
        raise click.ClickException(f"{script} computes nothing with Dask")
