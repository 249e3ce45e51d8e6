"""Keeps the journal of a scheduler, and goes on where the scheduler before has died: `Restarts`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Any, NamedTuple

from dask.typing import Key
from distributed.core import Status
from distributed.metrics import monotonic, time
from distributed.protocol import pickle
from distributed.scheduler import Scheduler, TaskState

from dask_marsched.config import Settings
from dask_marsched.fallbacks.guard import guarded
from dask_marsched.host.contract import demand
from dask_marsched.host.graph.result_sizes import ChunkSizes
from dask_marsched.host.restart import process, records, restoration
from dask_marsched.host.restart.held_objects import NOT_KEPT, HeldObjects
from dask_marsched.host.restart.opening import Rows, open_rows
from dask_marsched.host.restart.recorder import FIRE_AND_FORGET, Recorder
from dask_marsched.host.restart.reported_states import start_all
from dask_marsched.host.restart.returning_workers import ReturningWorkers
from dask_marsched.host.restart.sessions import Sessions
from dask_marsched.host.scheduler.garbage_collection import collector_paused
from dask_marsched.journal.store import SETTING, JournalError
from dask_marsched.journal.writer import JournalWriter
from dask_marsched.scheduling.engine import PlacementEngine

logger = logging.getLogger("dask_marsched")

#: Names of what wants keys as clients do: variables, queues, published datasets.
_HOLDERS = (FIRE_AND_FORGET, "variable-", "queue-", "published-")

_LEFT = ("waiting", "queued", "no-worker", "processing")  #: States of tasks yet to be computed.
_REMEMBERED = 100  #: Most outages that the journal keeps.
#: Most times that a graph is read again on which the scheduler has died. Under a service manager it
#: would otherwise die of the same graph for ever.
_MOST_READINGS = 2

_POLL = 0.05  #: Seconds between two checks whether all clients are back.
#: Seconds for which results of graphs that the journal lacks are kept for their clients.
_UNKNOWN_CLIENTS = 5.0


class _Parts(NamedTuple):
    """The parts that keep a journal on a scheduler."""

    recorder: Recorder
    workers: ReturningWorkers
    sessions: Sessions
    objects: HeldObjects

    def install(self, invited: Collection[str], write: Callable[[], Awaitable[bool]]) -> None:
        """Replace handlers of the scheduler, or raise a RuntimeError."""
        demand(restoration.misfits(self.recorder.scheduler), "no journal is kept")
        self.recorder.install()
        self.objects.install()
        self.workers.install()
        self.sessions.install(invited)
        process.outlive_termination(self.recorder.scheduler, write)

    def uninstall(self) -> None:
        """Restore the scheduler. Idempotent."""
        process.restore_close(self.recorder.scheduler)
        for part in (self.sessions, self.workers, self.objects, self.recorder):
            part.uninstall()


class _Restored(NamedTuple):
    """Tasks made again from the journal, and graphs that the scheduler before had not read."""

    tasks: list[TaskState]
    wanted: list[Key]
    sizes: ChunkSizes
    unread: list[restoration.JournaledGraph]
    errors: list[tuple[Key, Any]]
    attempts: list[tuple[Key, Any]]


class Restarts:
    """The journal of one scheduler, and what came back of the scheduler before.

    ``restored`` is called with the tasks that were made again, before any of them starts.

    ``outages`` are those of this journal, each a dict: ``time`` of the return; ``seconds`` until
    tasks could start; ``tasks`` made again; ``workers`` that came back, with how many results
    (``held``) and ``running`` tasks; ``missing`` workers; tasks ``left`` to compute.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        settings: Settings,
        engine: PlacementEngine,
        restored: Callable[[list[TaskState]], None],
    ) -> None:
        self.scheduler: Any = scheduler
        self.settings = settings
        self.engine = engine
        self.counters = engine.counters
        self.failure: str | None = None  #: None: no failure here stops the placement.
        self.reason: str | None = None  #: Why no journal is kept.
        self.outages: list[dict[str, Any]] = []
        self.ready = asyncio.Event()  #: Set when graphs may be read.
        self._restored = restored
        self._parts: _Parts | None = None
        self._finishing: asyncio.Task[None] | None = None
        self._starting_again: asyncio.Task[None] | None = None
        self._reading: dict[int, int] = {}
        self._begun = 0.0

    @property
    def kept(self) -> bool:
        """Whether a journal is kept."""
        return self._parts is not None and self.reason is None

    @property
    def clients(self) -> set[str]:
        """The clients that have a session."""
        return set(self._parts.recorder.sessions) if self._parts is not None else set()

    def start(self, invited: Collection[str]) -> None:
        """Open the journal, and make the tasks again that it names.

        ``invited`` are clients that can begin a session. Without a journal, `reason` says why.
        """
        try:
            with collector_paused():
                self._start(invited)
        except (JournalError, RuntimeError) as error:
            self._fail(error)
        except Exception as error:
            self.engine.counters.caught("restore", error)
            place = self.settings.journal_directory
            self._fail(
                JournalError(
                    f"{SETTING}: what is in {place} could not be restored ({error!r}), and stays "
                    "there; move it away to begin with nothing"
                )
            )

    def _start(self, invited: Collection[str]) -> None:
        assert self.settings.journal_directory is not None
        is_late = self.scheduler.status is Status.running
        store, rows = open_rows(self.settings.journal_directory, is_late)
        call_here = asyncio.get_running_loop().call_soon_threadsafe
        writer = JournalWriter(store, lambda error: call_here(self._fail, error))
        try:
            self._go_on(writer, rows, invited)
        except Exception:
            # Before the parts are removed, which deletes what they know from the journal.
            writer.close()
            raise

    def _go_on(self, writer: JournalWriter, rows: Rows, invited: Collection[str]) -> None:
        facts = {key: pickle.loads(value) for key, value in rows[records.FACTS]}
        starts = facts.get("starts", 0) + 1
        self._reading = facts.get(records.READING, {})
        writer.put(records.FACTS, "starts", pickle.dumps(starts))
        process.begin_after(starts)
        recorder = Recorder(self.scheduler, writer, self.engine.counters.caught, self.ready)
        workers = {address: pickle.loads(value) for address, value in rows[records.WORKERS]}
        sessions = {client: int(number) for client, number in rows[records.SESSIONS]}
        self._parts = parts = _Parts(
            recorder,
            ReturningWorkers(self.scheduler, workers, facts.get(records.LAST_RUN, process.NO_RUN)),
            Sessions(recorder, sessions, self.settings.journal_patience, self.ready),
            HeldObjects(recorder),
        )
        parts.install(invited, self._write_all)
        self.scheduler.handlers[process.RESTART] = self._restart_process
        self._begun = begun = monotonic()
        restored = self._restore(parts, rows, workers)
        parts.objects.restore(rows[records.OBJECTS])
        if not (workers or restored.unread or restored.wanted):
            # A worker may yet return: it had lost its connection, or the journal was deleted.
            parts.workers.restore_nothing()
            self.ready.set()
            return
        self.outages += facts.get("outages", ())
        self.outages.append(
            {
                "time": time(),
                "read": monotonic() - begun,
                "seconds": None,
                "tasks": len(restored.tasks),
                "workers": 0,
                "missing": len(workers),
                "held": 0,
                "running": 0,
                "left": 0,
            }
        )
        self._finishing = asyncio.create_task(self._finish(parts, restored))

    def invite(self, clients: Collection[str]) -> None:
        """Invite clients that can begin a session."""
        if self._parts is not None and self.kept:
            self._parts.sessions.invite(clients)

    def _restore(self, parts: _Parts, rows: Rows, workers: dict[str, str]) -> _Restored:
        s, recorder, sessions = self.scheduler, parts.recorder, parts.sessions
        graphs = restoration.read_graphs(rows, recorder.wanted)
        for graph in graphs:
            recorder.start_after(graph.number)
        by_client: dict[str, list[Key]] = {}
        # The scheduler had not read these graphs. Their keys may be those of older tasks, which
        # are not wanted.
        not_made = {graph.number for graph in graphs if graph.made is None}
        for client in recorder.wanted.clients():
            if client in sessions.missing or client.startswith(_HOLDERS):
                by_client[client] = recorder.wanted.of(client, but_of=not_made)
            else:  # it does not come back
                recorder.forget_client(client)
        wanted = [key for keys in by_client.values() for key in keys]
        with restoration.workers_named(s, {name: address for address, name in workers.items()}):
            tasks, sizes = restoration.restore_tasks(s, graphs, wanted)
        for client, keys in by_client.items():
            sessions.stand_in(client, [key for key in keys if key in s.tasks])
        unread = []
        for graph in graphs:
            if graph.made is not None:
                parts.workers.first_runs |= dict.fromkeys(graph.own, graph.made["first_run"])
                recorder.follow(graph.number, graph.own, graph.message["keys"])
                graph.tasks = {}
            elif graph.message["client"] in by_client:
                unread.append(graph)
            else:
                recorder.forget_graph(graph.number)
        attempts = restoration.unpickled(rows[records.ATTEMPTS])
        errors = restoration.unpickled(rows[records.ERRORS])
        recorder.written_before(errors, attempts)
        return _Restored(tasks, wanted, sizes, unread, errors, attempts)

    async def _finish(self, parts: _Parts, restored: _Restored) -> None:
        """Start what is left to do when the workers are back, and then let clients come back."""
        s, workers, sessions = self.scheduler, parts.workers, parts.sessions
        try:
            await workers.all_back()
            for address in workers.expected - s.workers.keys():
                parts.recorder.journal.delete(records.WORKERS, address)
            with collector_paused():
                workers.go_on()
                # Now: an error spreads to the tasks that read the failed one, unless they are held.
                restoration.restore_errors(s, restored.errors, restored.attempts)
                self.engine.graph_arrives(len(restored.tasks), restored.sizes)
                known = [s.tasks[key] for key in restored.wanted if key in s.tasks]
                self.engine.plan(known, restored.tasks)
                self._restored(restored.tasks)
                start_all(s, restored.wanted)
                parts.recorder.release_computed(parts.recorder.wanted.of(FIRE_AND_FORGET))
            for graph in restored.unread:
                await self._read(parts, graph)
            parts.recorder.journal.delete(records.FACTS, records.READING)
            self._tell(parts, restored.tasks)
        except Exception as error:
            self.engine.counters.caught("restore", error)
            sessions.give_up()  # rather than wait for what never starts
            workers.restore_nothing()
        finally:
            self.ready.set()
        del restored
        # Clients that come back send what the journal had missed.
        until = monotonic() + _UNKNOWN_CLIENTS
        while (
            sessions.missing
            or parts.recorder.reading
            or (workers.unclaimed and monotonic() < until)
        ):
            await asyncio.sleep(_POLL)
        workers.settle()

    async def _read(self, parts: _Parts, graph: restoration.JournaledGraph) -> None:
        """Read a graph, unless schedulers have died of it too often."""
        number, times = graph.number, self._reading.get(graph.number, 0)
        journal, client = parts.recorder.journal, graph.message["client"]
        if times == _MOST_READINGS:
            logger.error(
                "A graph of %s is given up: the scheduler ended %d times while it read it again",
                client,
                times,
            )
            parts.recorder.forget_graph(number)
            return
        journal.put(records.FACTS, records.READING, pickle.dumps({number: times + 1}))
        await asyncio.wrap_future(journal.flush())
        client = parts.sessions.stands_in_for(client)
        await parts.recorder.read_graph(number, {**graph.message, "client": client})

    def _tell(self, parts: _Parts, restored: list[TaskState]) -> None:
        outage, workers = self.outages[-1], parts.workers
        outage |= {
            "seconds": monotonic() - self._begun,
            "workers": workers.returned,
            "missing": sum(address not in self.scheduler.workers for address in workers.expected),
            "held": workers.held,
            "running": workers.still_running,
            "left": sum(ts.state in _LEFT for ts in restored) - workers.still_running,
        }
        last = pickle.dumps(self.outages[-_REMEMBERED:])
        parts.recorder.journal.put(records.FACTS, "outages", last)
        logger.warning(
            "Restored %(tasks)d tasks: %(workers)d workers are back with %(held)d results, "
            "%(missing)d are not; %(running)d tasks still run, %(left)d are left",
            outage,
        )

    # --- what happens on the scheduler ----------------------------------------------------

    @guarded(lambda: None)
    def graph_created(self, tasks: Collection[Key], keys: Collection[Key]) -> None:
        """Record how the tasks of a graph were made, and take what workers have of them."""
        if self._parts is not None and self.kept:
            workers = self._parts.workers
            first_run = workers.last_run if workers.claim(tasks) else None
            self._parts.recorder.graph_created(tasks, keys, first_run)

    @guarded(lambda: None)
    def moved(self, ts: TaskState, start: str, finish: str) -> None:
        """Record what a transition leaves."""
        if self._parts is not None and self.kept:
            self._parts.recorder.moved(ts, start, finish)

    @guarded(lambda: None)
    def worker_came(self, address: str) -> Awaitable[Any] | None:
        """Record a worker, and take what it holds; see `ReturningWorkers.arrived`."""
        if self._parts is None:
            return None
        if self.kept:
            name = self.scheduler.workers[address].name
            self._parts.recorder.journal.put(records.WORKERS, address, pickle.dumps(name))
        return self._parts.workers.arrived(address)

    @guarded(lambda: None)
    def worker_left(self, address: str) -> None:
        """Record that a worker has left."""
        if self._parts is not None and self.kept:
            self._parts.recorder.journal.delete(records.WORKERS, address)

    @guarded(lambda: None)
    def restarted(self) -> None:
        """Record what the restart of the cluster has cleared."""
        if self._parts is not None and self.kept:
            self._parts.objects.metadata_changed()

    # --- the end --------------------------------------------------------------------------

    def _fail(self, error: Exception) -> None:
        self.reason = str(error)
        logger.error("No journal is kept: %s", error)
        if self._parts is not None:
            self._parts.uninstall()
        self.ready.set()

    async def restart(self) -> str | None:
        """Write all, and start this process anew soon; return the reason if it cannot be."""
        if self._parts is None or not self.kept:
            return self.reason or "there is no journal"
        if (reason := process.why_not_again(self.scheduler)) is not None:
            return reason
        if not await self._write_all():
            return "the journal cannot be written"
        self._starting_again = asyncio.create_task(self._start_again())
        return None

    async def _start_again(self) -> None:
        await asyncio.sleep(process.ANSWERED)
        if await self._write_all():  # what has happened meanwhile
            process.start_again()
        else:
            logger.error("The scheduler goes on: the journal cannot be written")

    async def _write_all(self) -> bool:
        """Write all that happened; return whether it is durable."""
        if self._parts is None or not self.kept:
            return False
        try:
            return await asyncio.wrap_future(self._parts.recorder.pass_on())
        except Exception as error:
            self.engine.counters.caught("journal", error)
            return False

    async def _restart_process(self) -> dict[str, str]:
        reason = await self.restart()
        return {"status": "OK"} if reason is None else {"status": "refused", "reason": reason}

    def uninstall(self) -> None:
        """Restore the scheduler, and end the journal; nothing is left in it to go on with."""
        for task in (self._finishing, self._starting_again):
            if task is not None:
                task.cancel()
        self.scheduler.handlers.pop(process.RESTART, None)
        parts, self._parts = self._parts, None
        self.reason = self.reason or "removed from the scheduler"
        if parts is not None:
            try:
                parts.uninstall()
                parts.objects.forget_all()
                for address in parts.workers.expected:
                    parts.recorder.journal.delete(records.WORKERS, address)
                parts.recorder.forget_all()
            finally:  # else nobody could open it again
                parts.recorder.journal.close()

    def report(self) -> dict[str, Any]:
        """Return the state of the journal, as plain values for JSON."""
        parts = self._parts
        return {
            "directory": self.settings.journal_directory,
            "reason": self.reason,
            "graphs": parts.recorder.graphs if parts is not None else 0,
            "bytes_written": parts.recorder.journal.bytes_written if parts is not None else 0,
            "seconds_behind": parts.recorder.journal.lag_seconds if parts is not None else 0.0,
            "clients": len(self.clients),
            "outages": list(self.outages),
            "not_kept": list(NOT_KEPT),
        }
