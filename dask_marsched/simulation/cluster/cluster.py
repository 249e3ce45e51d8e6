"""Simulates a cluster: the scheduler, its workers, and the loop that drives them."""

from __future__ import annotations

import dataclasses
import functools
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any

import dask
from distributed.scheduler import heartbeat_interval
from distributed.worker_state_machine import UpdateDataEvent

from dask_marsched.host.twin.graph import TwinGraph
from dask_marsched.host.twin.scheduler import (
    TwinScheduler,
    parse_bandwidth_default,
    worker_metrics,
)
from dask_marsched.host.twin.shuffles import SchedulerShuffles
from dask_marsched.host.twin.virtual_time import TwinLoop, settle
from dask_marsched.host.twin.worker_state import state_machine
from dask_marsched.policies.sharing import LEAST_SHARED
from dask_marsched.simulation.cluster.clock import EPOCH, EventQueue
from dask_marsched.simulation.cluster.comms import BatchedStream
from dask_marsched.simulation.cluster.faults import SCHEDULER, Fault
from dask_marsched.simulation.cluster.machine import Cores, EventLoop, Host, Link, transfer
from dask_marsched.simulation.cluster.memory import Result
from dask_marsched.simulation.cluster.recorder import Recorder
from dask_marsched.simulation.cluster.shuffles import Shuffles
from dask_marsched.simulation.cluster.spec import ClusterSpec
from dask_marsched.simulation.cluster.worker import Worker
from dask_marsched.simulation.report.report import SimulationReport

#: Virtual seconds without progress after which a simulation counts as stuck.
_STUCK = 600.0
#: Load of an idle scheduler as a multiple of an idle worker's: 0.093 and 0.040 cores.
_SCHEDULER_IDLE_LOAD = 2.3

#: Seconds and bytes of a task, by its key.
CostOf = Callable[[Any], tuple[float, int]]


class Cluster:
    """A running simulation of a scheduler and its workers.

    ``validate`` lets them check their invariants (slow). With ``batches_releases`` workers hold
    back their answers about freed keys, as `DeferredMessages` does on a real worker. Workers of a
    host that ``shares_memory`` copy no large results.
    """

    shuffles: Shuffles

    def __init__(
        self,
        spec: ClusterSpec,
        queue: EventQueue,
        *,
        timeline: bool,
        validate: bool,
        batches_releases: bool,
        shares_memory: bool,
    ) -> None:
        self.spec = spec
        self.queue = queue
        self.latency = spec.latency
        self.batches_releases = batches_releases
        self._shares_memory = shares_memory
        self.assumed_bandwidth = parse_bandwidth_default()
        self.outgoing_limit = int(dask.config.get("distributed.worker.connections.outgoing"))
        self.workers_by_address: dict[str, Worker] = {}
        self.recorder = Recorder(EPOCH, timeline)
        self.workers: list[Worker] = []
        self._hosts: dict[str, Host] = {}
        self._costs: CostOf = {}.__getitem__
        self._validate = validate
        self._wanted: set[Any] = set()
        self._failure: str | None = None
        self._last_progress = queue.now
        self._end = self._back_at = queue.now
        cores = Cores(queue, None) if spec.cores is None else self._host(0).cores
        self._scheduler_loop = EventLoop(queue, cores)
        self.scheduler = TwinScheduler(self._open_stream, self._to_client, validate=validate)

    def cost(self, key: Any) -> tuple[float, int]:
        """Return seconds and bytes of a task, with the noise of this seed."""
        seconds, nbytes = self._costs(key)
        if self.spec.noise:
            draw = zlib.crc32(f"{self.spec.seed}/{key!r}".encode()) / 2**32
            seconds *= 1.0 + self.spec.noise * (2.0 * draw - 1.0)
        return seconds, nbytes

    def input_nbytes(self, key: Any) -> int:
        """Return the bytes of a task's inputs."""
        inputs = self.scheduler.tasks[key].dependencies
        return sum(self._costs(task.key)[1] for task in inputs)

    def executed(self, worker: Worker, key: Any, start: float, stop: float) -> None:
        """Note that a task was executed."""
        self._last_progress = stop
        self.recorder.executed(key, worker.index, start, stop)

    def move(
        self, source: Worker, target: Worker, keys: int, nbytes: int, done: Callable[[], object]
    ) -> None:
        """Move results between workers; call ``done`` when they have arrived.

        The slowest of both ends and the network determines the end. On a host with limited cores
        the ends take turns, since buffers are small. Transfers to itself pass a worker's event loop
        only. Nothing is copied where workers of a host share memory.
        """
        queue, now = self.queue, self.queue.now
        local = source.host is target.host
        is_shared = self._shares_memory and local and nbytes >= keys * LEAST_SHARED
        copied = 0 if is_shared else nbytes
        work = self.spec.transfer_cost + copied / self.spec.copy_bandwidth
        if source is target:
            source.loop.run(2 * work, done)
            return
        sender, receiver = (
            (source.local_out, target.local_in)
            if local
            else (source.host.nic_out, target.host.nic_in)
        )
        start, end = transfer(sender, receiver, copied, now)
        turns = local and not source.host.cores.unlimited
        left = 2 if turns else 3

        def part_done() -> None:
            nonlocal left
            left -= 1
            if not left:
                ends = (source.index, target.index)
                self._last_progress = queue.now
                self.recorder.transferred(ends, not local, keys, nbytes, start, queue.now)
                queue.after(self.latency, done)

        queue.at(end, part_done)
        receive = functools.partial(target.loop.run, work, part_done)
        if turns:
            source.loop.run(work, receive)
        else:
            source.loop.run(work, part_done)
            receive()

    def received(self, worker: Worker, messages: list[dict[str, Any]]) -> None:
        """Put messages into the scheduler's inbox, which is handled batch by batch."""
        seconds = self.spec.batch_cost + self.spec.message_cost * len(messages)
        self._scheduler_loop.run(seconds, functools.partial(self._handle, worker, messages))

    def _handle(self, worker: Worker, messages: list[dict[str, Any]]) -> None:
        if worker.alive or worker.address in self.scheduler.workers:
            self.scheduler.receive(worker.address, messages)

    def _host(self, index: int) -> Host:
        spec = self.spec
        host = min(index * spec.hosts // spec.workers, spec.hosts - 1)
        if index >= spec.workers:  # workers that join later have a host of their own
            host = index
        name = f"tcp://10.{host >> 16 & 255}.{host >> 8 & 255}.{host & 255}"
        if name not in self._hosts:
            cores = spec.cores
            if cores is not None:
                processes = spec.workers / spec.hosts + _SCHEDULER_IDLE_LOAD * (host == 0)
                cores *= cores / (cores + processes * spec.idle_load)
            self._hosts[name] = Host(
                name,
                Cores(self.queue, cores),
                Link(spec.bandwidth),
                Link(spec.bandwidth),
                Link(spec.disk_bandwidth),
            )
        return self._hosts[name]

    async def join(self, index: int) -> None:
        """Let worker number ``index`` join."""
        spec, host = self.spec, self._host(index)
        # A worker that comes back has another port, as on a real cluster.
        address = f"{host.name}:{10_000 + len(self.workers)}"
        state = state_machine(
            address, spec.threads, spec.memory_limit, spec.resources, self._validate
        )
        worker = Worker(self, index, address, host, state)
        self.workers_by_address[address] = worker
        self.workers.append(worker)
        self.recorder.joined(index)
        await self.scheduler.join(
            address, index, spec.threads, spec.memory_limit, dict(spec.resources)
        )
        phase = (index % 16) / 16
        self.queue.after(phase * 0.5, self._heartbeat, worker, daemon=True)
        self.queue.after(1.0 + phase * 0.1, self._tick, worker, daemon=True)

    def kill(self, worker: Worker) -> None:
        """Kill a worker; the scheduler notices the broken connection."""
        worker.kill()
        self.shuffles.lost(worker)
        noticed = max(self.queue.now, self._back_at) + self.latency
        self.queue.at(noticed, self._lost, worker.address)

    def plan(self, fault: Fault) -> None:
        """Schedule a fault."""
        # A cluster may wait for a worker to join.
        self.queue.at(EPOCH + fault.at, self._happen, fault, daemon=fault.what != "join")

    def _kill_scheduler(self, seconds: float) -> None:
        """Let messages to the scheduler wait until it is back, and workers begin nothing.

        A scheduler that is killed before it is back is away until the later of both times.
        """
        self._back_at = max(self._back_at, self.queue.now + seconds)
        self._scheduler_loop.block(self._back_at - self.queue.now)
        for worker in self.workers:
            if worker.alive:
                worker.pause("scheduler")
                self.queue.at(self._back_at, self._go_on, worker)

    def _go_on(self, worker: Worker) -> None:
        if self.queue.now >= self._back_at:
            worker.unpause("scheduler")

    async def _happen(self, fault: Fault) -> None:
        if fault.what == "join" and self.queue.now < self._back_at:
            # Nobody answers it before.
            self.queue.at(self._back_at, self._happen, fault)
            return
        self.recorder.fault(self.queue.now, fault.what, fault.worker)
        if fault.worker == SCHEDULER:
            self._kill_scheduler(fault.amount)
            return
        worker = next((w for w in self.workers if w.index == fault.worker and w.alive), None)
        if fault.what == "join":
            if worker is not None:
                raise ValueError(f"worker {fault.worker} cannot join at this time: it is there")
            await self.join(fault.worker)
            return
        if worker is None:
            raise ValueError(f"there is no worker {fault.worker} alive at the time of {fault!r}")
        if fault.what == "kill":
            self.kill(worker)
        elif fault.what == "pause":
            worker.pause("fault")
            self.queue.after(fault.amount, worker.unpause, "fault")
        elif fault.what == "slow":
            worker.slowness = fault.amount
        elif fault.what == "slow-link":
            for link in (worker.host.nic_in, worker.host.nic_out):
                link.bandwidth = self.spec.bandwidth / fault.amount
        else:
            raise NotImplementedError(f"no effect is defined for a fault of kind {fault.what!r}")

    async def _lost(self, address: str) -> None:
        await self.scheduler.remove_worker(
            address, stimulus_id=f"handle-worker-cleanup-{self.queue.now}"
        )

    def _open_stream(self, address: str, interval: float) -> BatchedStream:
        return BatchedStream(
            self.queue,
            interval,
            self.latency,
            self.workers_by_address[address].receive,
            self._scheduler_loop,
            self.spec.batch_cost,
        )

    def _heartbeat(self, worker: Worker) -> None:
        if not worker.alive or worker.address not in self.scheduler.workers:
            return
        now = self.queue.now
        self.scheduler.heartbeat_worker(
            address=worker.address,
            resolve_address=False,
            now=now,
            metrics=worker_metrics(worker.monitor.held, worker.bandwidth, worker.peers),
            executing={
                key: max(0.0, now - execution.start) for key, execution in worker.executing.items()
            },
        )
        worker.peers.clear()
        interval = heartbeat_interval(len(self.scheduler.workers))
        self.queue.after(interval, self._heartbeat, worker, daemon=True)

    def _tick(self, worker: Worker) -> None:
        if worker.alive:
            worker.tick()
            self.queue.after(1.0, self._tick, worker, daemon=True)

    def _to_client(self, message: dict[str, Any]) -> None:
        if message["op"] == "key-in-memory":
            self._wanted.discard(message["key"])
            self._end = self.queue.now + self.latency
        elif message["op"] == "lost-data":
            self._wanted.add(message["key"])
        elif message["op"] in ("task-erred", "cancelled-keys"):
            self._failure = f"{message['op']}: {message.get('key', message.get('keys'))!r}"

    async def run(self, loop: TwinLoop, graph: TwinGraph, costs: CostOf) -> None:
        """Submit a graph and simulate until the client has all keys; RuntimeError if it fails."""
        self._costs = costs
        self._wanted = set(graph.keys)
        self.shuffles = Shuffles(self, graph.shuffles, SchedulerShuffles(self.scheduler))
        self._hold(graph.held)
        self.scheduler.submit(graph)
        queue, seen = self.queue, loop.calls
        while self._wanted:
            if self._failure is not None:
                raise RuntimeError(f"the simulated computation failed: {self._failure}")
            if not queue.essential and queue.now - self._last_progress > _STUCK:
                raise RuntimeError(f"the simulated computation is stuck: {self._where()}")
            result = queue.step()
            if result is not None and hasattr(result, "__await__"):
                await result
            if loop.calls != seen:
                seen = await settle(loop, seen)

    def _hold(self, held: Mapping[Any, Collection[int]]) -> None:
        """Put results on workers before anything runs; the client keeps them."""
        if not held:
            return
        who_has = {key: [self.workers[i].address for i in places] for key, places in held.items()}
        nbytes = {key: self._costs(key)[1] for key in held}
        for worker in self.workers:
            own: dict[Any, object] = {
                key: Result(nbytes[key]) for key in held if worker.index in held[key]
            }
            if own:
                worker.stimulate(UpdateDataEvent(data=own, stimulus_id="held-before"))
        self.scheduler.hold(who_has, nbytes)

    def _where(self) -> str:
        states = Counter(task.state for task in self.scheduler.tasks.values())
        paused = [worker.index for worker in self.workers if worker.alive and worker.paused]
        parts = [f"{count} tasks {state}" for state, count in sorted(states.items())]
        if paused:
            parts.append(f"paused for lack of memory: workers {paused[:10]}")
        return ", ".join(parts)

    def report(self, graph: TwinGraph, **facts: Any) -> SimulationReport:
        """Return the report of the simulation that just ended, with ``facts`` known elsewhere."""
        for worker in self.workers:
            worker.note_pause()
        not_simulated = list(graph.not_simulated)
        full = [worker.index for worker in self.workers if worker.monitor.exceeded]
        if full:
            not_simulated.append(
                "restarts by nannies: the memory of these workers exceeded "
                f"distributed.worker.memory.terminate: {full[:10]}"
            )
        present = sum(
            (self._end if worker.died_at is None else worker.died_at) - worker.joined_at
            for worker in self.workers
        )
        return self.recorder.report(
            **facts,
            cluster=dataclasses.asdict(self.spec),
            tasks=len(graph.dsk),
            end=self._end,
            thread_seconds=present * self.spec.threads,
            peak_managed=self.scheduler.peak_managed,
            not_simulated=tuple(not_simulated),
        )
