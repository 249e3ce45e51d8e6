"""Simulates a worker: the real state machine with virtual threads and a virtual network."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Protocol

import distributed.worker_state_machine as wsm
import numpy

from dask_marsched.host.worker.deferred_messages import DeferredMessages
from dask_marsched.simulation.cluster.clock import EventQueue
from dask_marsched.simulation.cluster.comms import BatchedStream
from dask_marsched.simulation.cluster.machine import EventLoop, Host, Link
from dask_marsched.simulation.cluster.memory import MemoryMonitor, Result
from dask_marsched.simulation.cluster.recorder import Recorder
from dask_marsched.simulation.cluster.spec import ClusterSpec

_EVENTS: dict[str, Callable[..., wsm.StateMachineEvent]] = {
    "cancel-compute": wsm.CancelComputeEvent,
    "acquire-replicas": wsm.AcquireReplicasEvent,
    "compute-task": wsm.ComputeTaskEvent,
    "free-keys": wsm.FreeKeysEvent,
    "remove-replicas": wsm.RemoveReplicasEvent,
    "steal-request": wsm.StealRequestEvent,
    "refresh-who-has": wsm.RefreshWhoHasEvent,
    "remove-worker": wsm.RemoveWorkerEvent,
}
#: How requests end without results: the event, and a word for the name of the stimulus.
_BUSY = (wsm.GatherDepBusyEvent, "busy")
_NO_ANSWER = (wsm.GatherDepNetworkFailureEvent, "network-failure")
#: Seconds until a worker asks a busy peer again; as in ``distributed.worker``.
_RETRY_BUSY = 0.15
#: Bytes up to which a transfer does not count for the measured bandwidth; likewise.
_MEASURED_TRANSFER = 1_000_000
#: Least seconds between two batches of messages to the scheduler; likewise.
_BATCH_INTERVAL = 0.002


@dataclasses.dataclass(slots=True)
class _Execution:
    """A running task: its start, the scheduler's number of this attempt, seconds, and bytes."""

    start: float
    run_id: int
    seconds: float
    nbytes: int


@dataclasses.dataclass(slots=True)
class FetchRequest:
    """A request of a worker for results of another one, from ``start`` to its answer."""

    asker: Worker
    keys: set[Any]
    total_nbytes: int
    peer: str
    start: float
    data: dict[Any, Any] = dataclasses.field(default_factory=dict)


class WorkerCluster(Protocol):
    """The part of `Cluster` that workers use."""

    spec: ClusterSpec
    queue: EventQueue
    recorder: Recorder
    latency: float
    batches_releases: bool
    assumed_bandwidth: float
    outgoing_limit: int
    workers_by_address: dict[str, Worker]
    shuffles: Any

    def cost(self, key: Any) -> tuple[float, int]:
        """Return seconds and bytes of a task."""

    def input_nbytes(self, key: Any) -> int:
        """Return the bytes of a task's inputs."""

    def executed(self, worker: Worker, key: Any, start: float, stop: float) -> None:
        """Note that a task was executed."""

    def move(
        self, source: Worker, target: Worker, keys: int, nbytes: int, done: Callable[[], object]
    ) -> None:
        """Move results between workers; call ``done`` when they have arrived."""

    def received(self, worker: Worker, messages: list[dict[str, Any]]) -> None:
        """Take messages to the scheduler."""


class Worker:
    """A simulated worker of a `Cluster`; ``index`` is its number and name."""

    def __init__(
        self, cluster: WorkerCluster, index: int, address: str, host: Host, state: wsm.WorkerState
    ) -> None:
        self.index = index
        self.address = address
        self.host = host
        self.alive = True
        self.died_at: float | None = None
        self.outgoing = 0
        self.slowness = 1.0
        self.bandwidth = cluster.assumed_bandwidth
        self.peers: dict[str, tuple[float, int]] = {}
        self.executing: dict[Any, _Execution] = {}
        self.queue: EventQueue = cluster.queue
        self.joined_at = self.queue.now
        self._cluster = cluster
        spec: ClusterSpec = cluster.spec
        self.local_in = Link(spec.local_bandwidth)
        self.local_out = Link(spec.local_bandwidth)
        self.loop = EventLoop(cluster.queue, host.cores)
        self.monitor = MemoryMonitor(
            cluster.queue, spec.memory_limit, self._memory_changed, self.spilled, self._monitored
        )
        self.state = state
        self.state.data = self.monitor.store  # type: ignore[assignment]  # a mapping suffices
        self._reasons_to_pause: set[str] = set()
        self._paused_at = 0.0
        self.to_scheduler = BatchedStream(
            cluster.queue,
            _BATCH_INTERVAL,
            spec.latency,
            functools.partial(cluster.received, self),
            self.loop,
            spec.batch_cost,
        )
        self._deferred: DeferredMessages | None = None
        self._send: Callable[[dict[str, Any]], object] = self.to_scheduler.send
        if cluster.batches_releases:
            later = functools.partial(cluster.queue.after, daemon=True)
            self._deferred = DeferredMessages(self.to_scheduler.send, later)
            self._send = self._deferred.send

    def receive(self, messages: list[dict[str, Any]]) -> None:
        """Handle a batch of messages from the scheduler when the event loop is free."""
        cost = self._cluster.spec.batch_cost
        self.loop.run(cost, functools.partial(self._handle, messages))

    def _handle(self, messages: list[dict[str, Any]]) -> None:
        for message in messages:
            make = _EVENTS.get(message["op"])
            if make is not None:
                fields = message.copy()
                del fields["op"]
                self.stimulate(make(**fields))
            elif message["op"] == "shuffle-fail" and self.alive:
                self._cluster.shuffles.fail(message["shuffle_id"], message["run_id"])

    def tick(self) -> None:
        """Look for missing data, as a worker does once per second."""
        if self.alive and self.state.missing_dep_flight:
            self.stimulate(wsm.FindMissingEvent(stimulus_id=f"find-missing-{self.queue.now}"))

    def kill(self) -> None:
        """Die at once: nothing is sent or received any more, and all results are lost."""
        self.note_pause()
        self.alive = False
        self.died_at = self.queue.now
        self.to_scheduler.abort()
        if not self.host.cores.unlimited:
            self.host.cores.abort(self)
        self.monitor.lose_all()

    def stimulate(self, event: wsm.StateMachineEvent) -> None:
        """Feed an event to the state machine and carry out its instructions."""
        if not self.alive:
            return
        instructions = self.state.handle_stimulus(event)
        if self._deferred is not None and isinstance(
            event, wsm.FreeKeysEvent | wsm.RemoveReplicasEvent
        ):
            with self._deferred.freeing(event.keys):
                self._carry_out_all(instructions)
        else:
            self._carry_out_all(instructions)

    def _carry_out_all(self, instructions: wsm.Instructions) -> None:
        for instruction in instructions:
            self._carry_out(instruction)

    def _carry_out(self, instruction: wsm.Instruction) -> None:
        if isinstance(instruction, wsm.SendMessageToScheduler):
            self._send(instruction.to_dict())
        elif isinstance(instruction, wsm.Execute):
            self._execute(instruction.key)
        elif isinstance(instruction, wsm.GatherDep):
            self._gather(instruction.worker, instruction.to_gather, instruction.total_nbytes)
        elif isinstance(instruction, wsm.RetryBusyWorkerLater):
            self.queue.after(_RETRY_BUSY, self._retry, instruction.worker)
        else:
            raise TypeError(f"the twin does not know the instruction {instruction!r}")

    def _retry(self, peer: str) -> None:
        self.stimulate(
            wsm.RetryBusyWorkerEvent(worker=peer, stimulus_id=f"retry-busy-{self.queue.now}")
        )

    def use_disk(self, nbytes: int) -> None:
        """Write bytes to disk, or read them (< 0), while the event loop waits."""
        self.loop.block(self.host.disk.take(abs(nbytes), self.queue.now))

    def spilled(self, nbytes: int) -> None:
        """Write results to disk, or read them back (< 0)."""
        self.use_disk(nbytes)
        self._cluster.recorder.spilled(self.queue.now, self.index, nbytes)

    def _memory_changed(self, key: Any, change: int) -> None:
        self._cluster.recorder.memory_changed(self.queue.now, self.index, key, change)

    @property
    def paused(self) -> bool:
        """Whether the worker starts no tasks."""
        return bool(self._reasons_to_pause)

    def pause(self, reason: str) -> None:
        """Pause for a reason; several may apply at once."""
        if self.alive and not self.paused:
            self._paused_at = self.queue.now
            self._change_status("paused", wsm.PauseEvent)
        self._reasons_to_pause.add(reason)

    def unpause(self, reason: str) -> None:
        """Remove a reason to pause; continue if no other is left."""
        if reason in self._reasons_to_pause:
            self._reasons_to_pause.remove(reason)
            if self.alive and not self.paused:
                self._cluster.recorder.paused(self.index, self._paused_at, self.queue.now)
                self._change_status("running", wsm.UnpauseEvent)

    def note_pause(self) -> None:
        """Record a pause that is still going on."""
        if self.alive and self.paused:
            self._cluster.recorder.paused(self.index, self._paused_at, self.queue.now)

    def _monitored(self, full: bool) -> None:
        (self.pause if full else self.unpause)("memory")

    def _change_status(self, status: str, event: Callable[..., wsm.StateMachineEvent]) -> None:
        stimulus_id = f"worker-status-change-{self.queue.now}"
        message = {"op": "worker-status-change", "status": status, "stimulus_id": stimulus_id}
        self._send(message)
        self.stimulate(event(stimulus_id=stimulus_id))

    def _execute(self, key: Any) -> None:
        task = self.state.tasks[key]
        seconds, nbytes = self._cluster.cost(key)
        overhead = self._cluster.spec.task_overhead
        execution = _Execution(
            self.queue.now + overhead, task.run_id, seconds * self.slowness + overhead, nbytes
        )
        self.executing[key] = execution
        self.monitor.promise(nbytes)
        store = self.monitor.store
        on_disk = any(dependency.key not in store.fast for dependency in task.dependencies)
        for dependency in task.dependencies:
            store[dependency.key]  # reads it back from disk, marks it as used
        if on_disk:
            self.loop.run(0.0, functools.partial(self._start, key, execution))
        else:
            self._start(key, execution)

    def _start(self, key: Any, execution: _Execution) -> None:
        """Start a task whose inputs are in memory, unless the worker has died meanwhile."""
        if not self.alive:
            return
        execution.start = self.queue.now + self._cluster.spec.task_overhead
        work = functools.partial(self._work, execution)
        if not self._cluster.shuffles.execute(self, key, work):
            work(functools.partial(self.finish, key))

    def _work(self, execution: _Execution, done: Callable[[], object], read: int = 0) -> None:
        """Read bytes from disk, use a core, then call ``done``."""

        def run() -> None:
            if self.alive:
                self.host.cores.run(execution.seconds, done, self)

        if read:
            self.queue.after(self.host.disk.take(read, self.queue.now), run)
        else:
            run()

    def finish(self, key: Any) -> None:
        """Report a task's result when the event loop is free."""
        execution = self.executing[key]
        if self.alive:
            self._cluster.executed(self, key, execution.start, self.queue.now)
            self.loop.soon(functools.partial(self._finished, key, self.queue.now))

    def _finished(self, key: Any, stop: float) -> None:
        execution = self.executing.pop(key)
        self.monitor.promise(-execution.nbytes)
        self.stimulate(
            wsm.ExecuteSuccessEvent(
                key=key,
                run_id=execution.run_id,
                value=Result(execution.nbytes),
                start=execution.start,
                stop=stop,
                nbytes=execution.nbytes,
                type=numpy.ndarray,
                stimulus_id=f"task-finished-{stop}",
            )
        )

    def reschedule(self, key: Any) -> None:
        """Give a task back to the scheduler."""
        execution = self.executing.pop(key, None)
        if execution is not None:
            self.monitor.promise(-execution.nbytes)
            stimulus_id = f"reschedule-{self.queue.now}"
            self.stimulate(wsm.RescheduleEvent(key=key, stimulus_id=stimulus_id))

    def _gather(self, address: str, keys: set[Any], total_nbytes: int) -> None:
        latency, now = self._cluster.latency, self.queue.now
        peer = self._cluster.workers_by_address.get(address)
        request = FetchRequest(self, keys, total_nbytes, address, now)
        self.monitor.promise(total_nbytes)
        if peer is None or not peer.alive:
            self.queue.after(2 * latency, self.fetch_ended, request, *_NO_ANSWER)
        else:
            self.queue.after(latency, peer.loop.soon, functools.partial(peer.get_data, request))

    def get_data(self, request: FetchRequest) -> None:
        """Answer a peer's request for results."""
        cluster, asker = self._cluster, request.asker
        limit = cluster.outgoing_limit * (2 if asker.host is self.host else 1)
        if not self.alive:
            self.queue.after(cluster.latency, asker.fetch_ended, request, *_NO_ANSWER)
        elif self.outgoing >= (1 if self.paused else limit):
            self.queue.after(cluster.latency, asker.fetch_ended, request, *_BUSY)
        else:
            self.outgoing += 1
            store = self.monitor.store
            request.data = {key: store[key] for key in request.keys if key in store}
            nbytes = sum(result.nbytes for result in request.data.values())
            delivered = functools.partial(self._delivered, request, nbytes)
            cluster.move(self, asker, len(request.data), nbytes, delivered)

    def _delivered(self, request: FetchRequest, nbytes: int) -> None:
        self.outgoing -= 1
        if self.alive:
            request.asker.fetched(request, nbytes)
        else:
            request.asker.fetch_ended(request, *_NO_ANSWER)

    def fetched(self, request: FetchRequest, nbytes: int) -> None:
        """Take the requested results."""
        if nbytes > _MEASURED_TRANSFER:
            speed = nbytes / max(0.001, self.queue.now - request.start)
            self.bandwidth = self.bandwidth * 0.95 + speed * 0.05
            total, count = self.peers.get(request.peer, (0.0, 0))
            self.peers[request.peer] = (total + speed, count + 1)
        self.fetch_ended(request, wsm.GatherDepSuccessEvent, "success", data=request.data)

    def fetch_ended(
        self,
        request: FetchRequest,
        event: Callable[..., wsm.StateMachineEvent],
        how: str,
        **more: Any,
    ) -> None:
        """Tell the state machine how a request ended."""
        self.monitor.promise(-request.total_nbytes)
        self.stimulate(
            event(
                worker=request.peer,
                total_nbytes=request.total_nbytes,
                stimulus_id=f"gather-dep-{how}-{self.queue.now}",
                **more,
            )
        )
