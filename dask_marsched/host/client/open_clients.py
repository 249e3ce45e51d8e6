"""Checks the client that is given to a function: `require_open`."""

from __future__ import annotations

from typing import Any

import distributed
from distributed.client import ClosedClientError


def require_open(client: Any, call: str) -> None:
    """Raise a TypeError for what is no client, a ClosedClientError as Dask's for a closed one."""
    if not isinstance(client, distributed.Client):
        raise TypeError(f"{call} takes a distributed.Client, not {client!r}")
    if client.status == "closed":
        raise ClosedClientError(f"Client is closed. Can't call {call}.")
