"""Makes the tasks of another scheduler again, from its journal; none of them starts yet."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from dask._expr import LLGExpr
from dask.typing import Key
from distributed import scheduler as scheduler_module
from distributed.protocol import pickle
from distributed.protocol.serialize import deserialize
from distributed.scheduler import Computation, Scheduler, TaskState

from dask_marsched.core.wanted_keys import WantedKeys
from dask_marsched.host.contract import misfits_of_attributes, misfits_of_function
from dask_marsched.host.graph.result_sizes import ChunkSizes
from dask_marsched.host.graph.task_order import order_for
from dask_marsched.host.restart import records
from dask_marsched.host.scheduler.materialization import materialize_again

logger = logging.getLogger("dask_marsched")

_METHODS: dict[str, tuple[str, ...]] = {
    "_generate_taskstates": ("keys", "dsk", "computation"),
    "_apply_annotations": ("tasks", "annotations_by_type", "global_annotations"),
    "_set_priorities": ("internal_priority", "submitting_task", "user_priority", "tasks"),
    "client_desires_keys": ("keys", "client"),
    "new_task": ("key", "spec", "state"),
}


def misfits(scheduler: Any) -> list[str]:
    """Return what restoring does not find as expected in a scheduler."""
    found = misfits_of_attributes(
        "Scheduler", scheduler, ("aliases", "computations", "generation", "_last_time")
    )
    for name, parameters in _METHODS.items():
        found += misfits_of_function("Scheduler", scheduler, name, parameters)
    return found + misfits_of_function(
        "distributed.scheduler", scheduler_module, "_cull", ("dsk", "keys")
    )


@dataclass
class JournaledGraph:
    """A graph from the journal; ``made`` says how its tasks were made, None if they were not.

    Of its ``tasks``, those with ``own`` keys are made from it, others from other graphs.
    """

    number: int
    message: dict[str, Any]
    made: dict[str, Any] | None
    tasks: dict[Key, Any] = field(default_factory=dict)
    own: set[Key] = field(default_factory=set)
    annotations: Any = None
    sizes: ChunkSizes = field(default_factory=ChunkSizes)

    def read(self, scheduler: Any) -> None:
        """Make the tasks that the other scheduler had made."""
        assert self.made is not None
        graph = self.message["expr_ser"]
        expr = deserialize(graph.header, graph.frames)
        tasks, self.annotations, self.sizes = materialize_again(
            scheduler, expr, self.made["bundles"], self.made["groups"]
        )
        if isinstance(expr, LLGExpr):
            tasks = scheduler_module._cull(tasks, set(self.message["keys"]))
        self.tasks = tasks


def read_graphs(
    rows: Mapping[str, Iterable[tuple[str, bytes]]], wanted: WantedKeys
) -> list[JournaledGraph]:
    """Return the graphs in the rows of a journal; add to ``wanted`` what clients want."""
    released: dict[int, dict[int, bytes]] = {}
    for row, bits in rows[records.RELEASED]:
        number, _, chunk = row.partition("/")
        released.setdefault(int(number), {})[int(chunk)] = bits
    made = {int(row): pickle.loads(value) for row, value in rows[records.CREATED]}
    graphs = []
    for row, data in rows[records.GRAPHS]:
        graph = JournaledGraph(int(row), records.unpack(data), made.get(int(row)))
        graphs.append(graph)
        message, bits_by_chunk = graph.message, released.get(graph.number, {})
        wanted.graph_came(graph.number, message["client"], message["keys"], bits_by_chunk)
    for client, key in unpickled(rows[records.WANTS]):
        wanted.desires(client, [key])
    return graphs


def restore_tasks(
    scheduler: Scheduler, graphs: Iterable[JournaledGraph], wanted: Iterable[Key]
) -> tuple[list[TaskState], ChunkSizes]:
    """Make the tasks that are needed for the wanted keys; return them, and the known sizes."""
    s: Any = scheduler
    graphs = [graph for graph in graphs if graph.made is not None]
    for graph in graphs:
        try:
            graph.read(s)
        except Exception:
            logger.exception("A graph of the journal cannot be read; its results are lost")
    owner: dict[Key, JournaledGraph] = {}
    for graph in graphs:
        assert graph.made is not None
        earlier = frozenset(graph.made["known"])
        for key in graph.tasks:
            if key not in earlier or key not in owner:  # a key may be used again for another task
                owner[key] = graph
    for graph in graphs:
        graph.own = {key for key in graph.tasks if owner[key] is graph}
    needed = _needed(wanted, owner)
    restored: list[TaskState] = []
    sizes = ChunkSizes()
    last = s.generation
    for graph in graphs:
        own = {key: node for key, node in graph.tasks.items() if key in needed and key in graph.own}
        if own:
            restored += _made_or_lost(s, graph, own)
            last = max(last, math.ceil(graph.made["generation"]))  # type: ignore[index]
        sizes.exact.update((key, n) for key, n in graph.sizes.exact.items() if key in own)
        sizes.estimated.update((key, n) for key, n in graph.sizes.estimated.items() if key in own)
        graph.annotations = None
    s.generation, s._last_time = last, 0.0
    for key in needed:  # data that came without a task
        if key not in s.tasks:
            s.new_task(key, None, "released")
    return restored, sizes


def _needed(wanted: Iterable[Key], owner: Mapping[Key, JournaledGraph]) -> set[Key]:
    stack = list(wanted)
    needed = set(stack)
    while stack:
        key = stack.pop()
        if (graph := owner.get(key)) is not None:
            for dependency in graph.tasks[key].dependencies:
                if dependency not in needed:
                    needed.add(dependency)
                    stack.append(dependency)
    return needed


def _made_or_lost(scheduler: Any, graph: JournaledGraph, own: dict[Key, Any]) -> list[TaskState]:
    try:
        return _make(scheduler, graph, own)
    except Exception:
        logger.exception("A graph of the journal cannot be made; what no worker holds is lost")
        for key in own:
            if (ts := scheduler.tasks.get(key)) is not None:
                ts.run_spec = None
        return []


def _make(scheduler: Any, graph: JournaledGraph, own: dict[Key, Any]) -> list[TaskState]:
    """Make tasks as `Scheduler._create_taskstate_from_graph` does, up to their first transition."""
    s, message, made = scheduler, graph.message, graph.made
    assert made is not None
    order = message.get("internal_priority") or order_for(s, graph.tasks)
    computation = Computation()
    s.computations.append(computation)
    if code := message.get("code"):
        computation.code.add(code)
    general = message.get("annotations")
    if general:
        computation.annotations.update(general)
    touched, new, _ = s._generate_taskstates(keys=set(own), dsk=own, computation=computation)
    s._apply_annotations(
        tasks=new, annotations_by_type=graph.annotations, global_annotations=general
    )
    s.generation, s._last_time = made["generation"], math.inf
    s._set_priorities(
        internal_priority=order,
        submitting_task=None,
        user_priority=message.get("user_priority", 0),
        fifo_timeout=0,
        start=0.0,
        tasks=touched,
    )
    actors = message.get("actors")
    for key in message["keys"] if actors is True else actors or ():
        if key in own:
            s.tasks[key].actor = True
    spans = s.extensions.get("spans")
    if spans is not None:
        spans.observe_tasks(
            touched, span_metadata=message.get("span_metadata"), code=message.get("code") or ()
        )
    return [ts for ts in touched if ts.key in own]


@contextlib.contextmanager
def workers_named(scheduler: Any, names: Mapping[str, str]) -> Iterator[None]:
    """Let restrictions name workers that are not back yet; ``names`` are addresses by name."""
    before = dict(scheduler.aliases)
    scheduler.aliases.update(names)
    try:
        yield
    finally:
        scheduler.aliases.clear()
        scheduler.aliases.update(before)


def restore_errors(
    scheduler: Any, errors: Iterable[tuple[Key, Any]], attempts: Iterable[tuple[Key, Any]]
) -> None:
    """Set failed tasks to their errors, and others to the retries that they have left."""
    for key, (retries, suspicious) in attempts:
        if (ts := scheduler.tasks.get(key)) is not None:
            ts.retries, ts.suspicious = retries, suspicious
    for key, (exception, traceback, text, traceback_text, where) in errors:
        ts = scheduler.tasks.get(key)
        if ts is None or ts.state != "released":
            continue
        ts.exception, ts.traceback = exception, traceback
        ts.exception_text, ts.traceback_text = text, traceback_text
        ts.erred_on = set(where)
        ts.exception_blame = ts
        scheduler.transitions({key: "erred"}, "marsched-restored")


def unpickled(rows: Iterable[tuple[str, bytes]]) -> list[Any]:
    """Return the values of rows of pickles."""
    return [pickle.loads(value) for _, value in rows]
