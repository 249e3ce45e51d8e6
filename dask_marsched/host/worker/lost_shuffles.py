"""Ends a worker's part in P2P shuffles of which its scheduler could not tell it that they ended."""

from __future__ import annotations

import contextlib
from typing import Any

from distributed.shuffle._exceptions import P2PConsistencyError
from distributed.shuffle._worker_plugin import _ShuffleRunManager

from dask_marsched.host.contract import misfits_of_function

_WHY = "the connection to the scheduler broke"


def misfits() -> list[str]:
    """Return what is not as expected in a worker's shuffles; empty if all is well."""
    name, runs = "_ShuffleRunManager", _ShuffleRunManager
    return [
        *misfits_of_function(name, runs, "fail", ("shuffle_id", "run_id", "message")),
        *misfits_of_function(name, runs, "_fetch", ("shuffle_id",)),
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
            run = runs._active_runs.get(shuffle_id)
            if run is not None and run.run_id != await _current(runs, shuffle_id):
                runs.fail(shuffle_id, run.run_id, _WHY)


async def _current(runs: Any, shuffle_id: Any) -> int | None:
    """Return the number of the run of a shuffle, None if there is none."""
    with contextlib.suppress(P2PConsistencyError):
        number: int = (await runs._fetch(shuffle_id)).run_id
        return number
    return None


def _runs_of(worker: Any) -> Any:
    return getattr(worker.plugins.get("shuffle"), "shuffle_runs", None)
