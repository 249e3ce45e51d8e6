"""Asks the workers for states of operands that the scheduler does not know."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Container, Mapping
from dataclasses import dataclass, field
from typing import Any

from dask.typing import Key
from distributed.protocol import Serialize, deserialize
from distributed.protocol.pickle import dumps
from distributed.protocol.serialize import Serialized

#: Seconds that workers have to answer.
_TIMEOUT = 2.0


@dataclass(frozen=True)
class OperandDetails:
    """States of operands that only workers or the plugin know."""

    #: By worker, cancelled tasks that still run.
    interrupted: Mapping[str, Collection[Key]] = field(default_factory=dict)
    kept: Container[Key] = frozenset()  #: Results on disk, or that outlive their worker's process.
    retrying: Container[Key] = frozenset()  #: Failed tasks that wait for a retry.


#: Used if no worker was asked.
NOTHING = OperandDetails()


async def ask_workers(
    scheduler: Any, kept: Collection[Key], retrying: Container[Key] = frozenset()
) -> OperandDetails:
    """Return workers' answers, or none if one is late, with ``kept`` and ``retrying`` added."""
    message = {"op": "run", "function": dumps(_answer_on_worker), "kwargs": dumps({})}
    try:
        asked = scheduler.broadcast(msg=message, on_error="ignore")
        answers = await asyncio.wait_for(asked, _TIMEOUT)
    except TimeoutError:
        answers = {}
    found = {w: _unpacked(a["result"]) for w, a in answers.items() if a.get("status") == "OK"}
    on_disk = (key for _, keys in found.values() for key in keys)
    interrupted = {worker: keys for worker, (keys, _) in found.items() if keys}
    return OperandDetails(interrupted, {*kept, *on_disk}, retrying)


def _unpacked(result: Any) -> Any:
    """Deserialize an answer, which a scheduler receives still serialized."""
    if isinstance(result, Serialize):
        return result.data
    if isinstance(result, Serialized):
        return deserialize(result.header, result.frames)
    return result


def _answer_on_worker(dask_worker: Any) -> tuple[list[Key], list[Key]]:
    interrupted = getattr(dask_worker.plugins.get("marsched"), "interrupted", list)
    return list(interrupted()), list(getattr(dask_worker.data, "disk", ()))
