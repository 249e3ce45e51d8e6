"""Ends a worker's part in P2P shuffles that ended while its scheduler could not reach it."""

from __future__ import annotations

import contextlib
from typing import Any

from distributed.shuffle._exceptions import P2PConsistencyError

from dask_marsched.host.contract import misfits_of_attributes, misfits_of_function

_WHY = "the connection to the scheduler broke"


def misfits(worker: Any) -> list[str]:
    """Return what is not as expected in a worker's shuffles; empty if all is well."""
    if (runs := _runs_of(worker)) is None:
        return []
    return [
        *misfits_of_attributes("shuffle_runs", runs, ("_active_runs", "_refresh_locks")),
        *misfits_of_function("shuffle_runs", runs, "fail", ("shuffle_id", "run_id", "message")),
        *misfits_of_function("shuffle_runs", runs, "_fetch", ("shuffle_id",)),
    ]


def abandon_all(worker: Any) -> None:
    """Fail the shuffles of a worker whose connection broke: its scheduler runs them again."""
    if (runs := _runs_of(worker)) is not None:
        for shuffle_id, run in list(runs._active_runs.items()):
            runs.fail(shuffle_id, run.run_id, _WHY)


async def abandon_ended(worker: Any) -> None:
    """Fail the shuffles that began while a worker was away, and have ended since.

    Other workers may have sent it their parts, until the scheduler removed it.
    """
    if (runs := _runs_of(worker)) is None:
        return
    for shuffle_id, lock in list(runs._refresh_locks.items()):
        async with lock:  # an earlier answer about it may be on its way
            if (run := runs._active_runs.get(shuffle_id)) is None:
                continue
            current = None
            with contextlib.suppress(P2PConsistencyError):
                current = (await runs._fetch(shuffle_id)).run_id
            if run.run_id != current:
                runs.fail(shuffle_id, run.run_id, _WHY)


def _runs_of(worker: Any) -> Any:
    return getattr(getattr(worker, "plugins", {}).get("shuffle"), "shuffle_runs", None)
