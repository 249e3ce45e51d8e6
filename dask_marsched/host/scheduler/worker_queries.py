"""What a scheduler does not know of operands: its workers are asked for it."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Container, Mapping
from dataclasses import dataclass, field
from typing import Any

from dask.typing import Key
from distributed.protocol import Serialize, deserialize
from distributed.protocol.pickle import dumps
from distributed.protocol.serialize import Serialized

#: Seconds that workers have to answer: one that hangs is not waited for.
_SOON = 2.0


@dataclass(frozen=True)
class Known:
    """What only the workers, or the plugin, know of operands.

    Attributes
    ----------
    interrupted
        By worker the keys of what it was told to end and still runs.
    kept
        Keys of the results that are on disk, or outlive their worker's process.
    retrying
        Keys of what has failed and waits to be tried again.
    """

    interrupted: Mapping[str, Collection[Key]] = field(default_factory=dict)
    kept: Container[Key] = frozenset()
    retrying: Container[Key] = frozenset()


#: Where nobody was asked.
NOTHING = Known()


async def ask_workers(
    scheduler: Any, kept: Collection[Key], retrying: Container[Key] = frozenset()
) -> Known:
    """Return what the workers know, as far as they answer soon.

    Parameters
    ----------
    scheduler
        A `distributed.Scheduler`.
    kept
        Keys of the results that are known to outlive their worker's process.
    retrying
        See `Known`.
    """
    message = {"op": "run", "function": dumps(_known_to_worker), "kwargs": dumps({})}
    try:
        asked = scheduler.broadcast(msg=message, on_error="ignore")
        answers = await asyncio.wait_for(asked, _SOON)
    except TimeoutError:
        answers = {}
    told = {w: _unpacked(a["result"]) for w, a in answers.items() if a.get("status") == "OK"}
    on_disk = (key for _, keys in told.values() for key in keys)
    interrupted = {worker: keys for worker, (keys, _) in told.items() if keys}
    return Known(interrupted, {*kept, *on_disk}, retrying)


def _unpacked(result: Any) -> Any:
    """Return what a worker has answered: schedulers do not look into it."""
    if isinstance(result, Serialize):
        return result.data
    if isinstance(result, Serialized):
        return deserialize(result.header, result.frames)
    return result


def _known_to_worker(dask_worker: Any) -> tuple[list[Key], list[Key]]:
    interrupted = getattr(dask_worker.plugins.get("marsched"), "interrupted", list)
    return list(interrupted()), list(getattr(dask_worker.data, "disk", ()))
