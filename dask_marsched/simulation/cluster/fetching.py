"""Implements the request of a worker for results of another one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from distributed.worker_state_machine import (
    GatherDepBusyEvent,
    GatherDepNetworkFailureEvent,
    GatherDepSuccessEvent,
    StateMachineEvent,
)

if TYPE_CHECKING:
    from dask_marsched.simulation.cluster.worker import Worker

#: Bytes up to which a transfer does not count for the measured bandwidth, as in distributed.
_MEASURED_TRANSFER = 1_000_000


class FetchRequest:
    """A request for results, from when it is made to its answer.

    Parameters
    ----------
    asker
        The worker that asks.
    keys
        The requested results.
    total_nbytes
        Bytes that the asker expects.
    peer
        Address of the worker that is asked.
    start
        When the request was made, in virtual seconds.
    """

    __slots__ = ("asker", "data", "keys", "peer", "start", "total_nbytes")

    def __init__(
        self, asker: Worker, keys: set[Any], total_nbytes: int, peer: str, start: float
    ) -> None:
        self.asker = asker
        self.keys = keys
        self.total_nbytes = total_nbytes
        self.peer = peer
        self.start = start
        self.data: dict[Any, Any] = {}

    def succeeded(self, nbytes: int) -> None:
        """Hand over the results, ``nbytes`` in all."""
        asker, now = self.asker, self.asker.queue.now
        if nbytes > _MEASURED_TRANSFER:
            speed = nbytes / max(0.001, now - self.start)
            asker.bandwidth = asker.bandwidth * 0.95 + speed * 0.05
            total, count = asker.peers.get(self.peer, (0.0, 0))
            asker.peers[self.peer] = (total + speed, count + 1)
        self._report(GatherDepSuccessEvent, "success", data=self.data)

    def busy(self) -> None:
        """Report that the peer serves too many others."""
        self._report(GatherDepBusyEvent, "busy")

    def failed(self) -> None:
        """Report that the peer does not answer."""
        self._report(GatherDepNetworkFailureEvent, "network-failure")

    def _report(self, event: Callable[..., StateMachineEvent], what: str, **fields: Any) -> None:
        self.asker.monitor.promise(-self.total_nbytes)
        self.asker.stimulate(
            event(
                worker=self.peer,
                total_nbytes=self.total_nbytes,
                stimulus_id=f"gather-dep-{what}-{self.asker.queue.now}",
                **fields,
            )
        )
