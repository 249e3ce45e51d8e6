"""The simulated cluster: one scheduler, its workers, and the loop that drives them."""

from __future__ import annotations

import dataclasses
import zlib
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import dask
from distributed.scheduler import heartbeat_interval

from dask_marsched.host.simulation import TwinScheduler, parse_bandwidth_default, worker_metrics
from dask_marsched.host.virtual_time import TwinLoop, settle
from dask_marsched.simulation.clock import EPOCH, EventQueue
from dask_marsched.simulation.comms import BatchedStream
from dask_marsched.simulation.machine import Cores, Link
from dask_marsched.simulation.report import Recorder, SimulationReport
from dask_marsched.simulation.worker import Worker, state_machine

#: Seconds of virtual time without any progress after which a simulation counts as stuck.
_STUCK = 600.0


@dataclasses.dataclass(frozen=True)
class ClusterSpec:
    """Size and speed of a simulated cluster.

    Attributes
    ----------
    workers : int
        Number of workers at the start.
    threads : int
        Threads of each worker.
    memory_limit : int
        Bytes of memory of each worker; it limits incoming transfers as on a real one.
    bandwidth, local_bandwidth : float
        Bytes per second of a host's network interface in either direction, and between workers
        of the same host.
    latency : float
        Seconds that a message takes.
    hosts : int
        Hosts over which the workers are dealt in contiguous blocks.
    cores : float or None
        Cores of each host; None for as many as threads.
    task_overhead : float
        Seconds that a worker's thread loses between two tasks.
    message_cost : float
        Seconds that the scheduler needs to handle one message.
    noise : float
        Relative spread of the durations of tasks, drawn from the seed and the key.
    seed : int
        Seed of that noise.
    """

    workers: int
    threads: int
    memory_limit: int
    bandwidth: float
    local_bandwidth: float
    latency: float
    hosts: int
    cores: float | None
    task_overhead: float
    message_cost: float
    noise: float
    seed: int


class Cluster:
    """A running simulation.

    Parameters
    ----------
    spec
        The cluster.
    costs
        Returns the seconds and the result's bytes of a task, by its key.
    queue
        The events, shared with the event loop.
    timeline
        Whether to keep every event for the report.
    validate
        Whether scheduler and workers check their invariants all the time (slow).
    """

    def __init__(
        self,
        spec: ClusterSpec,
        costs: Callable[[Any], tuple[float, int]],
        queue: EventQueue,
        *,
        timeline: bool,
        validate: bool,
    ) -> None:
        self.spec = spec
        self.queue = queue
        self.latency = spec.latency
        self.local_bandwidth = spec.local_bandwidth
        self.task_overhead = spec.task_overhead
        self.assumed_bandwidth = parse_bandwidth_default()
        self.outgoing_limit = int(dask.config.get("distributed.worker.connections.outgoing"))
        self.workers_by_address: dict[str, Worker] = {}
        self.recorder = Recorder(EPOCH, timeline)
        self._all_workers: list[Worker] = []
        self._joined: list[tuple[float, float | None]] = []
        self._hosts: dict[str, tuple[Cores, Link, Link]] = {}
        self._costs = costs
        self._validate = validate
        self._wanted: set[Any] = set()
        self._failure: str | None = None
        self._scheduler_free = 0.0
        self._inbox: deque[tuple[Worker, list[dict[str, Any]]]] = deque()
        self._last_progress = queue.now
        self._end = queue.now
        self.scheduler = TwinScheduler(self._open_stream, self._to_client, validate=validate)

    # What the workers need

    def cost(self, key: Any) -> tuple[float, int]:
        """Return seconds and bytes of a task, with the noise of this seed."""
        seconds, nbytes = self._costs(key)
        if self.spec.noise:
            draw = zlib.crc32(f"{self.spec.seed}/{key!r}".encode()) / 2**32
            seconds *= 1.0 + self.spec.noise * (2.0 * draw - 1.0)
        return seconds, nbytes

    def memory_changed(self, worker: Worker, change: int) -> None:
        """Note that the bytes held by a worker changed."""
        self.recorder.memory_changed(self.queue.now, change)

    def executed(self, worker: Worker, key: Any, start: float, stop: float) -> None:
        """Note that a task was executed."""
        self._last_progress = stop
        self.recorder.executed(key, worker.index, start, stop)

    def transferring(
        self, source: Worker, target: Worker, keys: int, nbytes: int, start: float, stop: float
    ) -> None:
        """Note that a transfer was granted and when it will be over."""
        self._last_progress = max(self._last_progress, stop)
        ends = (source.index, target.index)
        self.recorder.transferred(ends, source.host != target.host, keys, nbytes, start, stop)

    def received(self, worker: Worker, messages: list[dict[str, Any]]) -> None:
        """Put messages into the scheduler's inbox; it handles one batch after the other."""
        self._inbox.append((worker, messages))
        if len(self._inbox) == 1:
            self.queue.at(self._scheduler_free, self._handle)

    def _handle(self) -> None:
        worker, messages = self._inbox[0]
        self._scheduler_free = self.queue.now + self.spec.message_cost * len(messages)
        if worker.alive or worker.address in self.scheduler.workers:
            self.scheduler.receive(worker.address, messages)
        self._inbox.popleft()
        if self._inbox:
            self.queue.at(self._scheduler_free, self._handle)

    # Membership

    async def join(self, index: int) -> None:
        """Let worker number ``index`` join."""
        spec = self.spec
        host = min(index * spec.hosts // spec.workers, spec.hosts - 1)
        if index >= spec.workers:  # one that joins later comes with a host of its own
            host = index
        name = f"tcp://10.{host >> 16 & 255}.{host >> 8 & 255}.{host & 255}"
        if name not in self._hosts:
            self._hosts[name] = (
                Cores(self.queue, spec.cores),
                Link(spec.bandwidth),
                Link(spec.bandwidth),
            )
        # A worker that comes back has another port, as on a real cluster.
        address = f"{name}:{10_000 + len(self._all_workers)}"
        state = state_machine(address, spec.threads, spec.memory_limit, self._validate)
        worker = Worker(self, index, address, *self._hosts[name], state=state)
        self.workers_by_address[address] = worker
        self._all_workers.append(worker)
        self._joined.append((self.queue.now, None))
        await self.scheduler.join(address, index, spec.threads, spec.memory_limit)
        phase = (index % 16) / 16
        self.queue.after(phase * 0.5, self._heartbeat, worker, daemon=True)
        self.queue.after(1.0 + phase * 0.1, self._tick, worker, daemon=True)

    async def kill(self, index: int) -> None:
        """Kill worker number ``index``; the scheduler hears of it when its connection breaks."""
        worker = next((w for w in self._all_workers if w.index == index and w.alive), None)
        if worker is None:
            raise ValueError(f"there is no worker {index} alive to kill at this time")
        worker.kill()
        place = self._all_workers.index(worker)
        self._joined[place] = (self._joined[place][0], self.queue.now)
        self.queue.after(self.latency, self._lost, worker.address)

    async def _lost(self, address: str) -> None:
        await self.scheduler.remove_worker(
            address, stimulus_id=f"handle-worker-cleanup-{self.queue.now}"
        )

    def _open_stream(self, address: str) -> BatchedStream:
        return BatchedStream(
            self.queue, 0.005, self.latency, self.workers_by_address[address].receive
        )

    def _heartbeat(self, worker: Worker) -> None:
        if not worker.alive or worker.address not in self.scheduler.workers:
            return
        now = self.queue.now
        self.scheduler.heartbeat_worker(
            address=worker.address,
            resolve_address=False,
            now=now,
            metrics=worker_metrics(worker.memory, worker.bandwidth, worker.peers),
            executing={key: max(0.0, now - start) for key, start in worker.executing.items()},
        )
        worker.peers.clear()
        interval = heartbeat_interval(len(self.scheduler.workers))
        self.queue.after(interval, self._heartbeat, worker, daemon=True)

    def _tick(self, worker: Worker) -> None:
        if worker.alive:
            worker.tick()
            self.queue.after(1.0, self._tick, worker, daemon=True)

    # The client

    def _to_client(self, message: dict[str, Any]) -> None:
        if message["op"] == "key-in-memory":
            self._wanted.discard(message["key"])
            self._end = self.queue.now + self.latency
        elif message["op"] == "lost-data":
            self._wanted.add(message["key"])
        elif message["op"] in ("task-erred", "cancelled-keys"):
            self._failure = f"{message['op']}: {message.get('key', message.get('keys'))!r}"

    async def run(self, loop: TwinLoop, expr: Any, keys: set[Any]) -> int:
        """Submit an expression and simulate until the client has all its keys.

        Returns
        -------
        int
            The number of tasks of the graph.

        Raises
        ------
        RuntimeError
            If a task failed for good, or nothing happens any more.
        """
        self._wanted = set(keys)
        tasks = self.scheduler.submit(expr, keys)
        queue, seen = self.queue, loop.calls()
        while self._wanted:
            if self._failure is not None:
                raise RuntimeError(f"the simulated computation failed: {self._failure}")
            if not queue.essential and queue.now - self._last_progress > _STUCK:
                raise RuntimeError(f"the simulated computation is stuck: {self._where()}")
            result = queue.step()
            if result is not None and hasattr(result, "__await__"):
                await result
            if loop.calls() != seen:
                seen = await settle(loop, seen)
        return tasks

    def _where(self) -> str:
        states: dict[str, int] = {}
        for task in self.scheduler.tasks.values():
            states[task.state] = states.get(task.state, 0) + 1
        return ", ".join(f"{count} {state}" for state, count in sorted(states.items()))

    def report(self, policy: str, tasks: int, plugin: Mapping[str, Any]) -> SimulationReport:
        """Return the report of the simulation that just ended."""
        present = sum(
            (left if left is not None else self._end) - joined for joined, left in self._joined
        )
        return self.recorder.report(
            policy=policy,
            workers=self.spec.workers,
            tasks=tasks,
            end=self._end,
            thread_seconds=present * self.spec.threads,
            peaks={worker.index: worker.peak_memory for worker in self._all_workers},
            plugin=dict(plugin),
        )
