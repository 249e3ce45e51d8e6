"""Simulates peer-to-peer shuffles between workers.

As in ``distributed``, a transfer task cuts its input into pieces, which are sent to the owners of
the output partitions in the background. The barrier waits until all have arrived. An output task
runs on the owner of its partition and reads it from disk or memory.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import dask
from dask.utils import parse_bytes

from dask_marsched.host.twin.shuffles import SchedulerShuffles, Shuffle, ShuffleTasks
from dask_marsched.simulation.cluster.clock import EventQueue
from dask_marsched.simulation.cluster.memory import PIECES
from dask_marsched.simulation.cluster.worker import Worker, WorkerCluster


@dataclasses.dataclass(slots=True, eq=False)
class ShuffleRun:
    """One run of a shuffle; a failed run is followed by another one."""

    number: int
    owners: dict[Any, str]
    closed: bool = False
    under_way: int = 0
    waiting: list[Callable[[], object]] = dataclasses.field(default_factory=list)
    stored: dict[Any, int] = dataclasses.field(default_factory=dict)
    transfers: set[Any] = dataclasses.field(default_factory=set)

    def proceed(self) -> None:
        """Call those who wait for the pieces that are under way."""
        for proceed in self.waiting:
            proceed()
        self.waiting.clear()


class Shuffles:
    """The shuffles of a simulation, given the `Cluster` and the shuffle tasks of the graph."""

    def __init__(
        self, cluster: WorkerCluster, tasks: ShuffleTasks, scheduler: SchedulerShuffles
    ) -> None:
        self._cluster = cluster
        self._queue: EventQueue = cluster.queue
        self._tasks = tasks
        self._scheduler = scheduler
        self._runs: dict[str, ShuffleRun] = {}
        self._members: set[tuple[str, int]] = set()
        self._buffered: Counter[str] = Counter()
        self._blocked: dict[str, deque[Callable[[], object]]] = {}
        self._counts = Counter(shuffle.id for shuffle, _ in tasks.transfers.values())
        self._buffer = parse_bytes(dask.config.get("distributed.p2p.comm.buffer"))

    def execute(self, worker: Worker, key: Any, work: Callable[..., None]) -> bool:
        """Execute a task by ``work`` if it is part of a shuffle, else return False."""
        if key in self._tasks.transfers:
            self._enter(worker, key, work)
        elif key in self._tasks.barriers:
            work(functools.partial(self._barrier, worker, key))
        elif key in self._tasks.outputs:
            self._unpack(worker, key, work)
        else:
            return False
        return True

    def fail(self, shuffle: str, number: int) -> None:
        """Close a run, as the scheduler tells its workers to."""
        run = self._runs.get(shuffle)
        if run is None or run.number != number or run.closed:
            return
        run.closed = True
        run.proceed()
        for output in list(run.stored):
            self._take(run, output)

    def lost(self, worker: Worker) -> None:
        """Forget a worker that died."""
        self._blocked.pop(worker.address, None)

    def _enter(self, worker: Worker, key: Any, work: Callable[..., None]) -> None:
        """Learn the run of a transfer from the scheduler, which only the first transfer asks."""
        shuffle, _ = self._tasks.transfers[key]
        run = self._runs.get(shuffle.id)
        if run is not None and not run.closed and (worker.address, run.number) in self._members:
            work(functools.partial(self._cut, worker, key, run))
        else:
            self._queue.after(self._cluster.latency, self._ask, worker, key, work)

    def _ask(self, worker: Worker, key: Any, work: Callable[..., None]) -> None:
        shuffle, _ = self._tasks.transfers[key]
        answer = self._scheduler.run(shuffle.id, key, worker.address)
        back = self._cluster.latency
        if answer is None:
            self._queue.after(back, worker.reschedule, key)
            return
        number, owners = answer
        run = self._runs.get(shuffle.id)
        if run is None or run.number != number:
            self._runs[shuffle.id] = run = ShuffleRun(number, owners)
        self._members.add((worker.address, number))
        self._queue.after(back, work, functools.partial(self._cut, worker, key, run))

    def _cut(self, worker: Worker, key: Any, run: ShuffleRun) -> None:
        if run.closed:
            worker.reschedule(key)
            return
        shuffle, partition = self._tasks.transfers[key]
        run.transfers.add(key)
        for address, outputs in self._by_owner(shuffle, run, partition, self._nbytes(key)).items():
            run.under_way += 1
            self._send(worker, address, shuffle, run, outputs)
        if self._buffered[worker.address] < self._buffer:
            worker.finish(key)
        else:
            waiting = self._blocked.setdefault(worker.address, deque())
            waiting.append(functools.partial(worker.finish, key))

    def _nbytes(self, key: Any) -> int:
        """Return the bytes that a transfer task sends."""
        nbytes = self._tasks.nbytes.get(key)
        return self._cluster.input_nbytes(key) if nbytes is None else nbytes

    def _by_owner(
        self, shuffle: Shuffle, run: ShuffleRun, partition: Any, nbytes: int
    ) -> dict[str, dict[Any, int]]:
        shares: dict[str, dict[Any, int]] = {}
        for output, share in shuffle.pieces(partition):
            own = shares.setdefault(run.owners[output], {})
            own[output] = own.get(output, 0) + round(nbytes * share)
        return shares

    def _send(
        self,
        worker: Worker,
        address: str,
        shuffle: Shuffle,
        run: ShuffleRun,
        outputs: dict[Any, int],
    ) -> None:
        nbytes = sum(outputs.values())
        self._buffered[worker.address] += nbytes
        worker.monitor.promise(nbytes)
        owner = self._cluster.workers_by_address[address]
        arrived = functools.partial(self._arrived, worker, owner, shuffle, run, outputs, nbytes)
        self._cluster.move(worker, owner, 1, nbytes, arrived)

    def _arrived(
        self, worker: Worker, owner: Worker, shuffle: Shuffle, run: ShuffleRun,
        outputs: dict[Any, int], nbytes: int,
    ) -> None:  # fmt: skip
        self._buffered[worker.address] -= nbytes
        worker.monitor.promise(-nbytes)
        blocked = self._blocked.get(worker.address)
        while blocked and self._buffered[worker.address] < self._buffer:
            blocked.popleft()()
        if run.closed or not owner.alive:
            return
        if shuffle.on_disk:
            owner.use_disk(nbytes)
        else:
            owner.monitor.hold(PIECES, nbytes)
            for output, size in outputs.items():
                run.stored[output] = run.stored.get(output, 0) + size
        run.under_way -= 1
        if not run.under_way:
            run.proceed()

    def _barrier(self, worker: Worker, key: Any) -> None:
        """Wait until all pieces have arrived, then for a message to all workers and back."""
        shuffle = self._tasks.barriers[key]
        run = self._runs[shuffle.id]
        there = functools.partial(self._queue.after, 2 * self._cluster.latency)
        passed = functools.partial(there, self._passed, worker, key, run)
        if len(run.transfers) < self._counts[shuffle.id]:
            there(self._scheduler.restart, shuffle.id, run.number)
            there(worker.reschedule, key)
        elif run.under_way and not run.closed:
            run.waiting.append(passed)
        else:
            passed()

    def _passed(self, worker: Worker, key: Any, run: ShuffleRun) -> None:
        if run.closed:
            worker.reschedule(key)
        else:
            worker.finish(key)

    def _unpack(self, worker: Worker, key: Any, work: Callable[..., None]) -> None:
        latency = self._cluster.latency
        reading = 0
        for shuffle, output in self._tasks.outputs[key]:
            run = self._runs[shuffle.id]
            owner = run.owners[output]
            if run.closed:
                self._queue.after(0.0, worker.reschedule, key)
                return
            if owner != worker.address:
                self._queue.after(
                    latency, self._scheduler.restrict, shuffle.id, run.number, key, owner
                )
                self._queue.after(2 * latency, worker.reschedule, key)
                return
            reading += shuffle.on_disk
        nbytes = self._cluster.cost(key)[1] if reading else 0
        work(functools.partial(self._unpacked, worker, key), read=nbytes)

    def _unpacked(self, worker: Worker, key: Any) -> None:
        for shuffle, output in self._tasks.outputs[key]:
            run = self._runs[shuffle.id]
            if run.closed:
                worker.reschedule(key)
                return
            if output in run.stored:
                self._take(run, output)
        worker.finish(key)

    def _take(self, run: ShuffleRun, output: Any) -> None:
        owner = self._cluster.workers_by_address[run.owners[output]]
        if owner.alive:
            owner.monitor.hold(PIECES, -run.stored.pop(output))
