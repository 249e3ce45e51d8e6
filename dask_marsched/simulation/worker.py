"""A simulated worker: the real state machine, with virtual threads and a virtual network."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import dask
import numpy
from dask.sizeof import sizeof
from dask.utils import parse_bytes
from distributed.worker_state_machine import (
    AcquireReplicasEvent,
    CancelComputeEvent,
    ComputeTaskEvent,
    Execute,
    ExecuteSuccessEvent,
    FindMissingEvent,
    FreeKeysEvent,
    GatherDep,
    GatherDepBusyEvent,
    GatherDepNetworkFailureEvent,
    GatherDepSuccessEvent,
    Instruction,
    RefreshWhoHasEvent,
    RemoveReplicasEvent,
    RemoveWorkerEvent,
    RetryBusyWorkerEvent,
    RetryBusyWorkerLater,
    SendMessageToScheduler,
    StateMachineEvent,
    StealRequestEvent,
    WorkerState,
)

from dask_marsched.simulation.comms import BatchedStream
from dask_marsched.simulation.machine import Cores, Link, transfer

if TYPE_CHECKING:
    from dask_marsched.simulation.cluster import Cluster

_EVENTS: dict[str, Callable[..., StateMachineEvent]] = {
    "cancel-compute": CancelComputeEvent,
    "acquire-replicas": AcquireReplicasEvent,
    "compute-task": ComputeTaskEvent,
    "free-keys": FreeKeysEvent,
    "remove-replicas": RemoveReplicasEvent,
    "steal-request": StealRequestEvent,
    "refresh-who-has": RefreshWhoHasEvent,
    "remove-worker": RemoveWorkerEvent,
}
#: Seconds until a worker asks again a peer that was busy; as in ``distributed.worker``.
_RETRY_BUSY = 0.15
#: Transfers smaller than this do not count for the measured bandwidth, in bytes; likewise.
_MEASURED_TRANSFER = 1_000_000


class Result:
    """Stands for the result of a task; only its size is known."""

    __slots__ = ("nbytes",)

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes


@sizeof.register(Result)  # type: ignore[untyped-decorator]
def _sizeof_result(result: Result) -> int:
    return result.nbytes


class _Store(dict[Any, Result]):
    """The results that a worker holds; reports every change of their bytes."""

    def __init__(self, changed: Callable[[int], None]) -> None:
        super().__init__()
        self._changed = changed

    def __setitem__(self, key: Any, value: Result) -> None:
        before = self.get(key)
        super().__setitem__(key, value)
        self._changed(value.nbytes - (before.nbytes if before is not None else 0))

    def __delitem__(self, key: Any) -> None:
        value = self[key]
        super().__delitem__(key)
        self._changed(-value.nbytes)


class _NoCounter:
    """Stands in for a state machine's statistics of tasks, which decide nothing."""

    def new_task(self, task: Any) -> None:
        pass

    def transitions(self, before: Any) -> None:
        pass


def state_machine(address: str, threads: int, memory_limit: int, validate: bool) -> WorkerState:
    """Return a worker's state machine, configured as ``distributed.worker.Worker`` does."""
    get = dask.config.get
    share = get("distributed.worker.memory.transfer")
    state = WorkerState(
        nthreads=threads,
        address=address,
        validate=validate,
        transfer_incoming_count_limit=get("distributed.worker.connections.incoming"),
        transfer_incoming_bytes_limit=int(memory_limit * share) if share else math.inf,
        transfer_message_bytes_limit=parse_bytes(
            get("distributed.worker.transfer.message-bytes-limit")
        ),
    )
    if not validate:
        state.task_counter = _NoCounter()  # type: ignore[assignment]
    return state


class Worker:
    """One worker of the twin.

    Parameters
    ----------
    cluster
        The cluster that it belongs to: its clock, costs, network and records.
    index
        Number of the worker; also its name.
    address
        Its address; the host part tells which host it runs on.
    cores, nic_in, nic_out
        The cores and the network interface of its host.
    state
        The state machine.
    """

    def __init__(
        self,
        cluster: Cluster,
        index: int,
        address: str,
        cores: Cores,
        nic_in: Link,
        nic_out: Link,
        state: WorkerState,
    ) -> None:
        self.index = index
        self.address = address
        self.host = address.rsplit(":", 1)[0]
        self.alive = True
        self.memory = 0
        self.peak_memory = 0
        self.outgoing = 0
        self.cores = cores
        self.nic_in, self.nic_out = nic_in, nic_out
        self.local_in = Link(cluster.local_bandwidth)
        self.local_out = Link(cluster.local_bandwidth)
        self.bandwidth = cluster.assumed_bandwidth
        self.peers: dict[str, tuple[float, int]] = {}
        self.state = state
        self._data = _Store(self._memory_changed)
        self.state.data = self._data  # type: ignore[assignment]
        self.executing: dict[Any, float] = {}
        self._cluster = cluster
        self.queue = cluster.queue
        self.to_scheduler = BatchedStream(
            cluster.queue, 0.002, cluster.latency, lambda batch: cluster.received(self, batch)
        )

    def _memory_changed(self, change: int) -> None:
        self.memory += change
        self.peak_memory = max(self.peak_memory, self.memory)
        self._cluster.memory_changed(self, change)

    def receive(self, messages: list[dict[str, Any]]) -> None:
        """Handle a batch of messages from the scheduler."""
        if not self.alive:
            return
        for message in messages:
            make = _EVENTS.get(message["op"])
            if make is not None:
                fields = {name: value for name, value in message.items() if name != "op"}
                self.stimulate(make(**fields))

    def tick(self) -> None:
        """Look for data that is nowhere to be found, as a worker does once per second."""
        if self.alive and self.state.missing_dep_flight:
            self.stimulate(FindMissingEvent(stimulus_id=f"find-missing-{self.queue.now}"))

    def kill(self) -> None:
        """Die at once: nothing is sent or received any more, all results are lost."""
        self.alive = False
        self.to_scheduler.abort()
        self._cluster.memory_changed(self, -self.memory)
        self.memory = 0

    def stimulate(self, event: StateMachineEvent) -> None:
        """Feed an event to the state machine and carry out what it says."""
        if not self.alive:
            return
        for instruction in self.state.handle_stimulus(event):
            self._carry_out(instruction)

    def _carry_out(self, instruction: Instruction) -> None:
        if isinstance(instruction, SendMessageToScheduler):
            self.to_scheduler.send(instruction.to_dict())
        elif isinstance(instruction, Execute):
            self._execute(instruction.key)
        elif isinstance(instruction, GatherDep):
            self._gather(instruction.worker, instruction.to_gather, instruction.total_nbytes)
        elif isinstance(instruction, RetryBusyWorkerLater):
            self.queue.after(_RETRY_BUSY, self._retry, instruction.worker)
        else:
            raise TypeError(f"the twin does not know the instruction {instruction!r}")

    def _retry(self, peer: str) -> None:
        self.stimulate(
            RetryBusyWorkerEvent(worker=peer, stimulus_id=f"retry-busy-{self.queue.now}")
        )

    # Execution

    def _execute(self, key: Any) -> None:
        task = self.state.tasks[key]
        seconds, nbytes = self._cluster.cost(key)
        start = self.queue.now + self._cluster.task_overhead
        self.executing[key] = start
        run_id = task.run_id
        self.cores.run(
            seconds + self._cluster.task_overhead,
            lambda: self._executed(key, run_id, start, nbytes),
        )

    def _executed(self, key: Any, run_id: int, start: float, nbytes: int) -> None:
        if not self.alive:
            return
        now = self.queue.now
        self.executing.pop(key, None)
        self._cluster.executed(self, key, start, now)
        self.stimulate(
            ExecuteSuccessEvent(
                key=key,
                run_id=run_id,
                value=Result(nbytes),
                start=start,
                stop=now,
                nbytes=nbytes,
                type=numpy.ndarray,
                stimulus_id=f"task-finished-{now}",
            )
        )

    # Transfers

    def _gather(self, address: str, keys: set[Any], total_nbytes: int) -> None:
        cluster, now = self._cluster, self.queue.now
        peer = cluster.workers_by_address.get(address)
        request = _Request(self, keys, total_nbytes, address, now)
        if peer is None or not peer.alive:
            self.queue.after(2 * cluster.latency, request.failed)
        else:
            self.queue.after(cluster.latency, peer.get_data, request)

    def get_data(self, request: _Request) -> None:
        """Answer a peer's request for results."""
        cluster, asker = self._cluster, request.asker
        local = asker.host == self.host
        if not self.alive:
            self.queue.after(cluster.latency, request.failed)
        elif self.outgoing >= cluster.outgoing_limit * (2 if local else 1):
            self.queue.after(cluster.latency, request.busy)
        else:
            self.outgoing += 1
            request.data = {key: self._data[key] for key in request.keys if key in self._data}
            nbytes = sum(result.nbytes for result in request.data.values())
            sender = self.local_out if local else self.nic_out
            receiver = asker.local_in if local else asker.nic_in
            start, end = transfer(sender, receiver, nbytes, self.queue.now)
            cluster.transferring(self, asker, len(request.data), nbytes, start, end)
            self.queue.at(end + cluster.latency, self._delivered, request, nbytes)

    def _delivered(self, request: _Request, nbytes: int) -> None:
        self.outgoing -= 1
        if self.alive:
            request.succeeded(nbytes)
        else:
            request.failed()


class _Request:
    """One request for results to a peer, as long as it is under way."""

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
        asker, now = self.asker, self.asker.queue.now
        if nbytes > _MEASURED_TRANSFER:
            speed = nbytes / max(0.001, now - self.start)
            asker.bandwidth = asker.bandwidth * 0.95 + speed * 0.05
            total, count = asker.peers.get(self.peer, (0.0, 0))
            asker.peers[self.peer] = (total + speed, count + 1)
        self._report(GatherDepSuccessEvent, "success", data=self.data)

    def busy(self) -> None:
        self._report(GatherDepBusyEvent, "busy")

    def failed(self) -> None:
        self._report(GatherDepNetworkFailureEvent, "network-failure")

    def _report(self, event: Callable[..., StateMachineEvent], what: str, **fields: Any) -> None:
        self.asker.stimulate(
            event(
                worker=self.peer,
                total_nbytes=self.total_nbytes,
                stimulus_id=f"gather-dep-{what}-{self.asker.queue.now}",
                **fields,
            )
        )
