"""Defines the commands of ``dask marsched``, for Dask's ``dask_cli`` entry point."""

from __future__ import annotations

import importlib
import json

import click

from dask_marsched.installation import how_to_install

# Module, function and extra. Imported on first use: `dask --help` loads this module, and they need
# optional packages.
_LAZY = {
    "demo": ("dask_marsched.demo.command", "demo", "demo"),
    "bench": ("dask_marsched.bench.command", "bench", "bench"),
    "explain": ("dask_marsched.simulation.explain.command", "explain", "simulate"),
    "simulate": ("dask_marsched.simulation.command", "simulate", "simulate"),
}


class _LazyGroup(click.Group):
    """Imports the commands in `_LAZY` on first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *_LAZY})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _LAZY:
            return super().get_command(ctx, cmd_name)
        module, attribute, extra = _LAZY[cmd_name]
        try:
            command: click.Command = getattr(importlib.import_module(module), attribute)
        except ModuleNotFoundError as error:
            raise click.ClickException(
                f"`dask marsched {cmd_name}` needs {error.name}, which is not installed: "
                f"run {how_to_install(extra)}"
            ) from error
        return command


def _seconds(timeout: str) -> float:
    from dask.utils import parse_timedelta

    try:
        return float(parse_timedelta(timeout))
    except (KeyError, ValueError, IndexError):  # all raised by Dask's parser
        raise click.BadParameter(
            f'{timeout!r} is not a duration such as "5s"', param_hint="--timeout"
        ) from None


@click.group(cls=_LazyGroup)
def marsched() -> None:
    """Placement of the Mars tensor engine for Dask."""


@marsched.command()
@click.argument("address")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
@click.option(
    "--timeout",
    default="5s",
    show_default=True,
    help="How long to wait for the connection and for each answer.",
)
def status(address: str, as_json: bool, timeout: str) -> None:
    """Show whether the plugin is active on the scheduler at ADDRESS, and its work.

    The exit code is 0 if it is active, 1 if it is not, 2 if ADDRESS cannot be reached.
    """
    import distributed
    from distributed.comm import resolve_address

    from dask_marsched.status import status as ask

    seconds = _seconds(timeout)
    try:
        # A client waits ten seconds for a wrong address, and closes with a traceback.
        resolve_address(address)
        with distributed.Client(address, timeout=seconds, set_as_default=False) as client:
            found = ask(client, timeout=seconds)
    except (distributed.TimeoutError, OSError, ValueError) as error:
        click.echo(f"Cannot connect to a scheduler at {address}: {error}", err=True)
        raise SystemExit(2) from None
    click.echo(json.dumps(found.to_dict(), indent=2) if as_json else str(found))
    if not found.active:
        raise SystemExit(1)


@marsched.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    add_help_option=False,
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def supervise(arguments: tuple[str, ...]) -> None:
    """Run `dask scheduler` with these ARGUMENTS, and start it again whenever it dies.

    Name a port and a journal: --port 8786 --marsched-journal DIR. What runs on the cluster goes on.
    """
    from dask_marsched.supervisor import supervise as run

    raise SystemExit(run(arguments))


@marsched.command()
@click.argument("address")
@click.option("--timeout", default="30s", show_default=True, help="How long to wait for each step.")
def restart(address: str, timeout: str) -> None:
    """Restart the scheduler at ADDRESS without losing what its cluster holds and runs.

    For upgrades of code and configuration. The scheduler must keep a journal. The exit code is 0
    when it is back, 1 if it refuses, 2 if it cannot be reached or does not come back.
    """
    from dask_marsched.restart_command import RefusedRestart, restart_scheduler

    try:
        seconds = restart_scheduler(address, _seconds(timeout))
    except RefusedRestart as refused:
        click.echo(f"The scheduler at {address} does not restart: {refused}", err=True)
        raise SystemExit(1) from None
    except (OSError, ValueError) as error:
        click.echo(f"Cannot restart the scheduler at {address}: {error}", err=True)
        raise SystemExit(2) from None
    click.echo(f"The scheduler at {address} is back after {seconds:.1f} s")
