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
    """Return the answers of the workers that are in time, with ``kept`` and ``retrying`` added."""
    message = {"op": "run", "function": dumps(_answer_on_worker), "kwargs": dumps({})}
    # a dead worker may still be registered
    there = [w for w, stream in scheduler.stream_comms.items() if not stream.please_stop]
    answers = await asyncio.gather(*(_ask(scheduler, address, message) for address in there))
    found = {worker: answer for each in answers for worker, answer in each.items()}
    on_disk = (key for _, keys in found.values() for key in keys)
    interrupted = {worker: keys for worker, (keys, _) in found.items() if keys}
    return OperandDetails(interrupted, {*kept, *on_disk}, retrying)


async def _ask(
    scheduler: Any, address: str, message: dict[str, Any]
) -> dict[str, tuple[list[Key], list[Key]]]:
    try:
        asked = scheduler.broadcast(msg=message, workers=[address], on_error="ignore")
        answers = await asyncio.wait_for(asked, _TIMEOUT)
    except asyncio.TimeoutError:
        return {}
    return {w: _unpacked(a["result"]) for w, a in answers.items() if a.get("status") == "OK"}


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
