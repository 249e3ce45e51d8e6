"""Keeps distributed from talking to dead workers that stay registered until their results are safe.

To send to a closed stream is an error. It would end the stream of whoever sent the message that is
being handled, or leave workers that are retiring half retired.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from distributed.batched import BatchedSend
from distributed.scheduler import Scheduler, WorkerState

from dask_marsched.host.contract import misfits_of_handler
from dask_marsched.host.replacements import Replacements

_BROADCAST = "broadcast"


def misfits(scheduler: Any) -> list[str]:
    """Return what is not as expected in a scheduler; empty if all is well."""
    return misfits_of_handler(scheduler, "handlers", _BROADCAST, "broadcast")


class _LostStream(BatchedSend):
    """Stands for the stream to a dead worker: drops messages."""

    def __init__(self) -> None:
        super().__init__(interval="5ms")  # type: ignore[no-untyped-call]  # untyped there
        self.please_stop = True  # as after `abort`

    def send(self, *msgs: Any) -> None:
        pass


class DeadWorkers:
    """The dead workers that are still registered."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler: Any = scheduler
        self._undo = Replacements()

    def __contains__(self, address: str) -> bool:
        return isinstance(self.scheduler.stream_comms.get(address), _LostStream)

    def install(self) -> None:
        """Leave dead workers out when a message goes to all."""
        self._undo.entry(self.scheduler.handlers, _BROADCAST, self._broadcast)
        self._undo.attribute(self.scheduler, _BROADCAST, self._broadcast)

    def uninstall(self) -> None:
        """Restore the scheduler. Idempotent."""
        self._undo.close()

    def removing(self, address: str) -> None:
        """Take note of a worker that is about to be removed, if its connection is closed."""
        streams = self.scheduler.stream_comms
        stream = streams.get(address)
        if stream is not None and stream.closed():
            streams[address] = _LostStream()

    def left_out(self, workers: Iterable[WorkerState]) -> list[WorkerState]:
        """Return these workers without the dead ones."""
        return [ws for ws in workers if ws.address not in self]

    async def _broadcast(
        self,
        *,
        workers: Any = None,
        hosts: Any = None,
        nanny: bool = False,
        serializers: Any = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        # distributed gives `serializers` to handlers that name it.
        s = self.scheduler
        if workers is None and hosts is None and not nanny:  # their nannies live
            workers = [ws.address for ws in self.left_out(s.workers.values())]
        found: dict[str, Any] = await type(s).broadcast(
            s, workers=workers, hosts=hosts, nanny=nanny, serializers=serializers, **kwargs
        )
        return found
