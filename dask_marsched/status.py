"""Tells whether the plugin is active on a cluster, and its work: `status`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import distributed
from dask.utils import parse_timedelta

if TYPE_CHECKING:
    from dask_marsched.monitoring.cluster_status import Status

__all__ = ["Status", "status"]


def status(client: distributed.Client, timeout: str | float = "5s") -> Any:
    """Return the `Status` of the scheduler that a client is connected to.

    It works with every client, even if dask_marsched is not installed on the scheduler or on some
    of the workers.

    Parameters
    ----------
    client : distributed.Client
        A stock client or a `dask_marsched.Client`.
    timeout : str or float, default "5s"
        How long to wait for the scheduler, and after it for the workers, seconds.

    Returns
    -------
    Status
        For an asynchronous client an awaitable of it.

    Raises
    ------
    TypeError
        If ``client`` is not a client.

    Examples
    --------
    >>> print(dask_marsched.status(client))  # doctest: +SKIP
    """
    if not isinstance(client, distributed.Client):
        raise TypeError(f"status takes a distributed.Client, not {client!r}")
    # Imported on first use, as every process that imports the package reads this file.
    from dask_marsched.monitoring.cluster_status import ask, not_connected

    if client.status == "closed" and not client.asynchronous:  # its event loop may have ended
        return not_connected(client)
    return client.sync(ask, client, float(parse_timedelta(timeout)))


def __getattr__(name: str) -> Any:
    if name != "Status":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from dask_marsched.monitoring.cluster_status import Status

    return Status
