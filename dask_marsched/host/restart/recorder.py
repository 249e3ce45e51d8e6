"""Records what another scheduler must know to go on: `Recorder`.

Handlers of the clients' messages are wrapped. What arrives often is gathered, and passed to the
journal some milliseconds later.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Collection, Hashable, Iterable
from concurrent.futures import Future
from typing import Any

from dask.typing import Key
from distributed.metrics import monotonic
from distributed.protocol import Serialized, pickle, serialize
from distributed.scheduler import Scheduler, TaskState

from dask_marsched.core.living_graphs import LivingGraphs
from dask_marsched.core.wanted_keys import WantedKeys
from dask_marsched.host.client.reconnection import COUNTED, OVER, WRITTEN
from dask_marsched.host.contract import demand, misfits_of_function, misfits_of_handler
from dask_marsched.host.restart import process, records
from dask_marsched.host.restart.arriving_graph import ArrivingGraph, arriving
from dask_marsched.journal.writer import JournalWriter

#: Seconds in which changes are gathered before they go to the journal.
_GATHERED = 0.01
#: Seconds between two searches for graphs that nobody needs any more.
_SWEPT = 1.0
#: Seconds of the event loop that one search takes at most, and seconds between it and the next one
#: if it has not found all.
_SLICE, _NEXT_SLICE = 0.005, 0.05

#: The scheduler's own client that wants what nobody waits for, until it is computed.
FIRE_AND_FORGET = "fire-and-forget"
#: Wants of these are not recorded: they stand for clients that have yet to come back.
RESTORED = "marsched-restored-"
#: States of tasks: transitions from and to these are recorded, see `Recorder.moved`. A set of names
#: is looked up faster than a method is called, which counts for each of 100,000 tasks that arrive.
RECORDED_FROM, RECORDED_TO = frozenset({"processing", "erred"}), frozenset({"erred", "forgotten"})

_METHODS: dict[str, tuple[str, ...]] = {
    "client_desires_keys": ("keys", "client"),
    "_client_releases_keys": ("keys", "cs", "recommendations"),
    "remove_client": ("client", "stimulus_id"),
    "update_graph": ("client", "expr_ser", "keys"),
    "_generate_taskstates": ("keys", "dsk", "computation"),
}
#: Methods that are replaced on the instance, and by which.
_REPLACED = {
    "client_desires_keys": "_client_desires_keys",
    # Below `client_releases_keys`: what is computed for "fire-and-forget" is released there.
    "_client_releases_keys": "_release_keys",
    "remove_client": "_remove_client",
    "_generate_taskstates": "_generate_taskstates",
}


def misfits(scheduler: Any) -> list[str]:
    """Return what the recorder does not find as expected in a scheduler."""
    found: list[str] = []
    for name, parameters in _METHODS.items():
        found += misfits_of_function("Scheduler", scheduler, name, parameters)
    for op in ("client-desires-keys", "client-releases-keys"):
        found += misfits_of_handler(scheduler, "stream_handlers", op, op.replace("-", "_"))
    return found


#: The message of distributed for an actor whose worker died.
_LOST_ACTOR = "Worker holding Actor was lost"


def _lost_actor() -> Serialized:
    return Serialized(*serialize(RuntimeError(_LOST_ACTOR)))


class Recorder:
    """Keeps a journal of one scheduler.

    ``ready`` is awaited before a graph is read: while the results that workers hold are still
    unknown, they would be computed again.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        journal: JournalWriter,
        caught: Callable[[str, Exception], None],
        ready: asyncio.Event,
    ) -> None:
        self.scheduler: Any = scheduler
        self.journal = journal
        self.wanted = WantedKeys()
        self.sessions: dict[str, int] = {}
        self.graphs = 0
        self.reading = 0  #: Graphs that are being read.
        #: Called whenever changes are passed on, to add some.
        self.before_passing: Callable[[], None] = lambda: None
        self.caught = caught
        self._ready = ready
        self._numbers = itertools.count(1)
        self._alive = LivingGraphs()
        #: Of graphs whose tasks were just made: how, which it has defined, and which are wanted.
        self._made: dict[int, tuple[dict[str, Any], Collection[Key], Collection[Key]]] = {}
        #: Keys of tasks that no graph of the journal has defined.
        self._unrecorded: set[Key] = set()
        self._counted: set[str] = set()
        self._rows: set[tuple[str, str]] = set()  # errors and attempts that were written
        self._due: asyncio.TimerHandle | None = None
        self._sweep: asyncio.TimerHandle | None = None
        self._stock: dict[str, Any] = {}
        self._read: Any = None  # the stock handler; graphs may wait while this is uninstalled

    # --- installation ---------------------------------------------------------------------

    def install(self) -> None:
        """Wrap handlers and methods, or raise a RuntimeError and change nothing."""
        s = self.scheduler
        demand(misfits(s), "no journal is kept")
        self._unrecorded.update(s.tasks)
        handlers = s.stream_handlers
        self._stock = {op: handlers[op] for op in COUNTED}
        self._read = handlers["update-graph"]
        handlers["update-graph"] = self._update_graph
        for op in COUNTED - {"update-graph"}:
            handlers[op] = self._counting(op)
        for name, own in _REPLACED.items():
            setattr(s, name, getattr(self, own))
        self._sweep = asyncio.get_running_loop().call_later(_SWEPT, self._find_dead_graphs)

    def uninstall(self) -> None:
        """Restore the scheduler, and end the sessions of its clients. Idempotent."""
        if not self._stock:
            return
        s = self.scheduler
        s.stream_handlers.update(self._stock)
        self._stock = {}
        for name in _REPLACED:
            vars(s).pop(name, None)
        for timer in (self._due, self._sweep):
            if timer is not None:
                timer.cancel()
        for client in self.sessions:
            self.send(client, {"op": OVER})
            self.journal.delete(records.SESSIONS, client)
        self.sessions.clear()
        self._counted.clear()

    def start_after(self, number: int) -> None:
        """Give the graphs that arrive numbers above this one."""
        self._numbers = itertools.count(number + 1)

    def written_before(self, *tables_of_rows: Iterable[tuple[Key, Any]]) -> None:
        """Take note of errors and attempts that are in the journal; remove those of no task."""
        for table, found in zip((records.ERRORS, records.ATTEMPTS), tables_of_rows, strict=True):
            for key, _ in found:
                self._rows.add((table, repr(key)))
                if key not in self.scheduler.tasks:
                    self._delete_row(table, key)

    def forget_all(self) -> None:
        """Remove what would make another scheduler go on; the facts stay."""
        for number in self.wanted.graphs():
            self.forget_graph(number)
        for client in self.wanted.clients():
            self.forget_client(client)
        for address in self.scheduler.workers:
            self.journal.delete(records.WORKERS, address)
        for row in self._rows:
            self.journal.delete(*row)
        self.pass_on()

    def send(self, client: str, message: dict[str, Any]) -> None:
        """Send a message to a client that may have left."""
        comm = self.scheduler.client_comms.get(client)
        if comm is not None and not comm.closed():
            comm.send(message)

    # --- what is recorded -----------------------------------------------------------------

    async def _update_graph(self, **message: Any) -> None:
        self.reading += 1
        try:
            await self._ready.wait()
            await self._record_and_read(message)
        finally:
            self.reading -= 1

    async def _record_and_read(self, message: dict[str, Any]) -> None:
        client = message["client"]
        number = next(self._numbers)
        try:
            # A list: the order of a set is another one in the next process.
            keys = list(message["keys"])
            data = records.pack({**message, "keys": keys})
            self.journal.put(records.GRAPHS, records.numbered(number), data)
            self.wanted.graph_came(number, client, keys)
            self._count(client)
            self.graphs += 1
        except Exception as error:
            self.caught("journal", error)
        await self.read_graph(number, message)

    async def read_graph(self, number: int, message: dict[str, Any]) -> None:
        """Have the scheduler read a graph that is in the journal."""
        message = {**message, "keys": set(message["keys"])}
        graph = ArrivingGraph(number)
        token = arriving.set(graph)
        try:
            await self._read(**message)
        finally:
            arriving.reset(token)
            if number not in self._alive and number not in self._made:  # it was refused
                self._unrecorded.update(graph.defined & self.scheduler.tasks.keys())
                self.forget_graph(number)

    def graph_created(
        self, tasks: Collection[Key], wanted: Collection[Key], first_run: int | None = None
    ) -> None:
        """Record how the tasks of the graph that is being read were made.

        With ``first_run``, some had run under the scheduler before, from this number on.
        """
        graph = arriving.get()
        if graph is None:
            return
        if first_run is not None:
            graph.first_run = min(first_run, graph.first_run)
        made = graph.record(self.scheduler, tasks)
        own = [key for key in tasks if key in graph.defined]
        self._unrecorded.difference_update(own)
        # Written when the first tasks are on their way.
        self._made[graph.number] = made, own, wanted
        self.changed()

    def _generate_taskstates(self, keys: Any, dsk: Any, computation: Any) -> Any:
        s = self.scheduler
        if (graph := arriving.get()) is not None:
            graph.is_about_to_define(dsk, s.tasks, self._unrecorded)
        return type(s)._generate_taskstates(s, keys=keys, dsk=dsk, computation=computation)

    def follow(self, number: int, own: Collection[Key], wanted: Collection[Key]) -> None:
        """Keep the record of a graph while a task exists that it defined, or a client needs it."""
        last = set(wanted)
        self._alive.add(number, sorted(own, key=last.__contains__))

    def _counting(self, op: str) -> Callable[..., None]:
        stock = self._stock[op]
        # The stock handlers are bound methods, which the replacements of the instance would miss.
        replaced = getattr(self, "_" + getattr(stock, "__name__", ""), stock)

        def handle(**message: Any) -> None:
            replaced(**message)
            self._count(message["client"])

        return handle

    def _count(self, client: str) -> None:
        if client in self.sessions:
            self.sessions[client] += 1
            self._counted.add(client)
            self.changed()

    def _client_desires_keys(self, keys: Collection[Key], client: str) -> None:
        s = self.scheduler
        type(s).client_desires_keys(s, keys=keys, client=client)
        if arriving.get() is None and not client.startswith(RESTORED):
            self.wanted.desires(client, keys)
            self.changed()
        if client == FIRE_AND_FORGET:
            self.release_computed(keys)

    def release_computed(self, keys: Iterable[Key]) -> None:
        """Release what is there already and stays for "fire-and-forget" only."""
        s = self.scheduler
        done = [k for k in keys if k in s.tasks and s.tasks[k].state in ("memory", "erred")]
        if done:
            s.client_releases_keys(keys=done, client=FIRE_AND_FORGET)

    def _release_keys(self, keys: Collection[Key], cs: Any, recommendations: Any) -> None:
        s = self.scheduler
        keys = list(keys)
        if not cs.client_key.startswith(RESTORED):
            self.wanted.releases(cs.client_key, keys)
            self.changed()
        type(s)._client_releases_keys(s, keys=keys, cs=cs, recommendations=recommendations)
        # A message that a client sends again on its return: its keys may be used for other tasks.
        if (stand_in := s.clients.get(RESTORED + cs.client_key)) is not None:
            type(s)._client_releases_keys(
                s, keys=keys, cs=stand_in, recommendations=recommendations
            )

    def _remove_client(self, client: str, stimulus_id: str | None = None) -> None:
        s = self.scheduler
        type(s).remove_client(s, client=client, stimulus_id=stimulus_id)
        # One that had begun to come back tries again: its stand-in goes on to want what it wants.
        if RESTORED + client not in s.clients:
            self.forget_client(client)

    def forget_client(self, client: str) -> None:
        """Record that a client has left for good."""
        self.wanted.releases(client, self.wanted.of(client))
        self.sessions.pop(client, None)
        self._counted.discard(client)
        self.journal.delete(records.SESSIONS, client)
        self.changed()

    def moved(self, ts: TaskState, start: str, finish: str) -> None:
        """Record errors, what is left of a task's attempts, and that it is gone."""
        if finish == "forgotten":
            self._alive.forgotten(ts.key)
        if finish == "erred":
            if ts.exception_blame is ts:
                error = (ts.exception, ts.traceback, ts.exception_text, ts.traceback_text)
                self._put_row(records.ERRORS, ts.key, (*error, list(ts.erred_on or ())))
        elif start == "erred":
            self._delete_row(records.ERRORS, ts.key)
        elif finish == "memory" and ts.actor:
            # Stock Dask makes no other one either. If its worker returns, the error is not used.
            self._put_row(records.ERRORS, ts.key, (_lost_actor(), None, _LOST_ACTOR, "", []))
        if start == "processing" and finish != "memory":
            self._put_row(records.ATTEMPTS, ts.key, (ts.retries, ts.suspicious))
        if finish == "forgotten":
            self._delete_row(records.ERRORS, ts.key)
            self._delete_row(records.ATTEMPTS, ts.key)

    def _put_row(self, table: str, key: Hashable, value: Any) -> None:
        self._rows.add((table, repr(key)))
        self.journal.put(table, repr(key), pickle.dumps((key, value)))

    def _delete_row(self, table: str, key: Hashable) -> None:
        if self._rows and (row := (table, repr(key))) in self._rows:
            self._rows.discard(row)
            self.journal.delete(*row)

    # --- the way to the journal -----------------------------------------------------------

    def changed(self) -> None:
        """Pass changes on soon."""
        if self._due is None:
            self._due = asyncio.get_running_loop().call_later(_GATHERED, self._pass_on)

    def _pass_on(self) -> None:
        self._due = None
        try:
            self.pass_on()
        except Exception as error:
            self.caught("journal", error)

    def pass_on(self) -> Future[bool]:
        """Hand over what has changed; return a future of whether it is durable."""
        while self._made:
            created, (made, tasks, last) = self._made.popitem()
            self.journal.put(records.CREATED, records.numbered(created), pickle.dumps(made))
            self.follow(created, tasks, last)
        # Before what was released: none of it is durable without a number above all its runs. Not
        # while graphs of the scheduler before are unread, the results of which have lower ones.
        if self._ready.is_set():
            self.journal.put(records.FACTS, records.LAST_RUN, pickle.dumps(process.next_run()))
        for number, chunk, bits in self.wanted.changed_chunks():
            self.journal.put(records.RELEASED, records.of_chunk(number, chunk), bits)
        for (client, key), wanted in self.wanted.changed_singles().items():
            row = records.of_want(client, key)
            if wanted:
                self.journal.put(records.WANTS, row, pickle.dumps((client, key)))
            else:
                self.journal.delete(records.WANTS, row)
        self.before_passing()
        # Last: with the number of a message, its effects are durable.
        counted = {client: self.sessions[client] for client in self._counted}
        self._counted.clear()
        for client, number in counted.items():
            self.journal.put(records.SESSIONS, client, str(number).encode())
        written = self.journal.flush()
        if counted:
            loop = asyncio.get_running_loop()
            written.add_done_callback(
                lambda done: (
                    done.result()
                    and not loop.is_closed()
                    and loop.call_soon_threadsafe(self._acknowledge, counted)
                )
            )
        return written

    def _acknowledge(self, counted: dict[str, int]) -> None:
        for client, number in counted.items():
            if client in self.sessions:
                self.send(client, {"op": WRITTEN, "number": number})

    def begin_session(self, client: str, number: int) -> None:
        """Count the messages of a client from this number on."""
        self.sessions[client] = number
        self._counted.add(client)
        self.changed()

    # --- graphs that nobody needs ---------------------------------------------------------

    def _find_dead_graphs(self) -> None:
        wait = _SWEPT
        try:
            if not self.forget_dead_graphs():
                wait = _NEXT_SLICE
        finally:
            self._sweep = asyncio.get_running_loop().call_later(wait, self._find_dead_graphs)

    def forget_dead_graphs(self) -> bool:
        """Remove graphs that nobody needs, for a short time; return whether none is left.

        The time ends between two graphs.
        """
        until = monotonic() + _SLICE
        lost = self._alive.settle(self.scheduler.tasks)
        for number in itertools.chain(self.wanted.unwanted(), lost):
            if self._alive.keys_of(number) == [] and not self.wanted.wants_of(number):
                self.forget_graph(number)
            if monotonic() > until:
                return False
        return True

    def forget_graph(self, number: int) -> None:
        """Remove a graph that nobody needs."""
        self._alive.discard(number)
        self._made.pop(number, None)
        row = records.numbered(number)
        for table in (records.GRAPHS, records.CREATED):
            self.journal.delete(table, row)
        for chunk in range(self.wanted.graph_gone(number)):
            self.journal.delete(records.RELEASED, records.of_chunk(number, chunk))
