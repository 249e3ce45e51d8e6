"""Sets up dask_marsched in a process that preloads it (``--preload dask_marsched``).

Workers get `MarsWorkerPlugin` from the scheduler, so the preload only checks the options there.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import click
import dask.config
from distributed import Client, Nanny, Scheduler, Worker

from dask_marsched.config import Settings, check
from dask_marsched.config.checks import FUSION
from dask_marsched.installation import explain_missing_module
from dask_marsched.policies import registry
from dask_marsched.scheduler_plugin import MarsSchedulerPlugin
from dask_marsched.scheduling.registration import Origin

logger = logging.getLogger(__name__)

_F = TypeVar("_F", bound=Callable[..., Any])

# Why the preload left a scheduler unchanged, for `dask_marsched.status`: distributed only logs the
# exceptions of a preload.
failures: weakref.WeakKeyDictionary[Scheduler, str] = weakref.WeakKeyDictionary()


def _check_policy(context: click.Context, option: click.Parameter, name: str | None) -> str | None:
    accepted = registry.names(str(option.name))
    if name is not None and name not in accepted:
        raise click.BadParameter(f"{name!r} is not one of {', '.join(accepted)}", context, option)
    return name


def _check_settings(
    context: click.Context, option: click.Parameter, pairs: tuple[str, ...]
) -> dict[str, Any]:
    overrides: dict[str, Any] = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator:
            raise click.BadParameter(f"{pair!r} is not of the form KEY=VALUE", context, option)
        overrides[key.strip()] = dask.config.interpret_value(value.strip())
    try:
        for key, value in overrides.items():
            check(key, value)
    except ValueError as error:
        raise click.BadParameter(str(error), context, option) from None
    return overrides


def _policy_option(kind: str, decision: str) -> Callable[[_F], _F]:
    return click.option(
        f"--marsched-{kind}",
        kind,
        metavar="NAME",
        callback=_check_policy,
        help=f"Policy that decides {decision} (see marsched.{kind}.policy).",
    )


@click.command("dask_setup")
@_policy_option("assignment", "which worker runs which initial operand")
@_policy_option("ordering", "which ready operand runs first")
@click.option(
    "--marsched-fusion",
    "fusion",
    type=click.Choice(FUSION),
    help="Which tasks are fused before they are scheduled (see marsched.fusion.graph).",
)
@click.option(
    "--marsched-journal",
    "journal",
    metavar="DIR",
    help="The scheduler's journal: a directory or a database (see marsched.journal.directory).",
)
@click.option(
    "--marsched-config",
    "overrides",
    metavar="KEY=VALUE",
    multiple=True,
    callback=_check_settings,
    help="An option of the marsched configuration, e.g. quota.fraction=0.6. Repeatable.",
)
async def dask_setup(
    dask_object: Any, /, overrides: dict[str, Any], journal: str | None, **chosen: str | None
) -> None:
    """Install MarsSchedulerPlugin in the process that preloads dask_marsched."""
    if journal is not None:
        overrides = {**overrides, "journal.directory": journal}
    if isinstance(dask_object, Scheduler):
        _setup_scheduler(dask_object, overrides, chosen)
    elif isinstance(dask_object, Client):
        await _setup_client(dask_object, overrides, chosen)
    elif isinstance(dask_object, Worker | Nanny):
        logger.debug("nothing to set up in %r: workers get their plugin later", dask_object)
    else:
        raise TypeError(
            "dask_marsched can be preloaded by a Scheduler, Worker, Nanny or Client, "
            f"not by {dask_object!r}"
        )


async def dask_teardown(dask_object: Any) -> None:
    """Forget the preload's failure on a scheduler that closes.

    The plugin restores its scheduler itself, and stays registered when a client closes.
    """
    if isinstance(dask_object, Scheduler):
        failures.pop(dask_object, None)


def _setup_scheduler(
    scheduler: Scheduler, overrides: dict[str, Any], chosen: dict[str, str | None]
) -> None:
    try:
        plugin = MarsSchedulerPlugin(settings=Settings.from_config(overrides), **chosen)
    except ValueError as error:
        failures[scheduler] = str(error)
        logger.error("dask_marsched is off on this scheduler: %s", error)
        return
    plugin.origin = Origin.here("preload")
    # register_scheduler_plugin would start the plugin a second time: the scheduler's start-up
    # awaits `start` of every plugin after the preloads.
    scheduler.add_plugin(plugin, idempotent=True)


async def _setup_client(
    client: Client, overrides: dict[str, Any], chosen: dict[str, str | None]
) -> None:
    # Workers create clients for tasks that submit tasks: these must not bring back a plugin that
    # was unregistered on purpose.
    if client.id.startswith("Client-worker-"):
        return
    try:
        plugin = MarsSchedulerPlugin(settings=Settings.from_config(overrides), **chosen)
        plugin.idempotent = True  # a plugin that is registered already stays
        # On the client's event loop a synchronous client's method returns an awaitable too.
        await client.register_plugin(plugin)
    except ValueError as error:
        logger.error("dask_marsched is off for %s: %s", client.id, error)
    except ImportError as error:
        reason = explain_missing_module(error)
        logger.error("dask_marsched is off for %s: %s", client.id, reason)
