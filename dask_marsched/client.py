"""Extends distributed's client by the keyword ``scheduler_plugin``: `Client`."""

from __future__ import annotations

from typing import Any

import distributed
from distributed.diagnostics.plugin import SchedulerPlugin

from dask_marsched.host.client.open_clients import require_open
from dask_marsched.host.client.reconnection import outlive_scheduler
from dask_marsched.host.client.registering import RegisteringClient
from dask_marsched.scheduler_plugin import MarsSchedulerPlugin


class Client(RegisteringClient):
    """`distributed.Client` that registers a scheduler plugin when it has connected.

    Parameters
    ----------
    *args, **kwargs
        As for `distributed.Client`: an address, a cluster or neither, ``asynchronous=True``,
        ``security=...`` and so on.
    scheduler_plugin : bool, str or SchedulerPlugin, optional
        ``None`` or ``False``: none, as with a stock client. ``True``: a `MarsSchedulerPlugin` as
        configured. A name: the same, with that assignment policy. A `MarsSchedulerPlugin` or any
        other `SchedulerPlugin`: this plugin.

    Raises
    ------
    TypeError
        ``scheduler_plugin`` is none of these. Nothing was started.
    ValueError
        The configuration or the name of the policy is not accepted. Nothing was started.
    RuntimeError
        The scheduler cannot load the plugin, usually because the package is not installed there.
        The client was closed, and its cluster if it had created one. With ``asynchronous=True``
        this is raised when the client is awaited.

    Examples
    --------
    >>> from dask_marsched import Client
    >>> client = Client(scheduler_plugin=True)  # doctest: +SKIP
    """

    def __init__(
        self,
        *args: Any,
        scheduler_plugin: bool | str | SchedulerPlugin | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, plugin=as_plugin(scheduler_plugin), **kwargs)


def resume(client: distributed.Client) -> Any:
    """Have the futures of a stock client wait for a scheduler that was killed and comes back.

    `Client` needs no call of this.

    Parameters
    ----------
    client : distributed.Client
        A client whose scheduler keeps a journal (``marsched.journal.directory``). It waits as long
        as ``marsched.journal.patience`` says in its process.

    Returns
    -------
    None
        For an asynchronous client an awaitable of it.

    Raises
    ------
    TypeError
        ``client`` is not a client.
    distributed.client.ClosedClientError
        The client is closed.
    RuntimeError
        The scheduler keeps no journal.

    Examples
    --------
    >>> dask_marsched.resume(client)  # doctest: +SKIP
    """
    require_open(client, "resume")
    return client.sync(_resume, client)


async def _resume(client: Any) -> None:
    if not await outlive_scheduler(client):
        raise RuntimeError(
            f"the scheduler at {client.scheduler.address} keeps no journal: start it with "
            "--preload dask_marsched --marsched-journal DIR"
        )


def as_plugin(given: bool | str | SchedulerPlugin | None) -> SchedulerPlugin | None:
    """Return the plugin for a value of ``scheduler_plugin``, or None.

    Raises TypeError for other types, ValueError for an unknown policy or configuration.
    """
    if given is None or given is False:
        return None
    if given is True:
        return MarsSchedulerPlugin()
    if isinstance(given, str):
        return MarsSchedulerPlugin(assignment=given)
    if isinstance(given, SchedulerPlugin):
        return given
    hint = ""
    if isinstance(given, type) and issubclass(given, SchedulerPlugin):
        hint = f" (this is a class: write {given.__name__}())"
    raise TypeError(
        "scheduler_plugin must be None or False (no plugin), True (as configured), the name of "
        "an assignment policy, a MarsSchedulerPlugin or another SchedulerPlugin instance, "
        f"not {given!r}{hint}"
    )
