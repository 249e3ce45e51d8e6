"""Joins tasks of an arriving graph into one, after it is materialized and before task states exist.

`policies.grouping` decides which tasks; `fused_tasks` makes the task that replaces a group.
"""

from __future__ import annotations

import contextvars
import weakref
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from graphlib import CycleError
from typing import Any

from dask._task_spec import DataNode, GraphNode
from dask.typing import Key
from dask.utils import key_split
from distributed.scheduler import Scheduler, TaskState
from distributed.sizeof import safe_sizeof

from dask_marsched.core.graph import OperandGraph
from dask_marsched.core.memoization import MOST_OPERANDS, without_tokens
from dask_marsched.core.size_model import with_averages
from dask_marsched.fallbacks.counters import Counters
from dask_marsched.host.graph import fused_tasks
from dask_marsched.host.graph.bundles import bundled, bundled_in, is_safe
from dask_marsched.host.graph.fused_tasks import Joinable, join
from dask_marsched.host.graph.numbering import canonically_numbered, numbered
from dask_marsched.host.graph.result_sizes import ChunkSizes
from dask_marsched.host.scheduler.graph_requests import ArrivingGraphs
from dask_marsched.policies.fusion import ALONE, FREE, VISIBLE, group_heads
from dask_marsched.policies.grouping import ClusterLimits, Groups, find_groups

#: The graph that is being read: set in the scheduler's coroutine and seen in its offload thread.
current: contextvars.ContextVar[FusionRequest | None] = contextvars.ContextVar(
    "graph", default=None
)

#: Fields that the message with a graph must have; otherwise nothing is fused.
_NEEDED = {"actors", "annotations", "keys"}

in_force: weakref.WeakKeyDictionary[Scheduler, GraphFusion] = weakref.WeakKeyDictionary()


@dataclass
class FusionRequest:
    """A graph on its way into the scheduler."""

    fusion: GraphFusion
    keys: Collection[Key]  #: Wanted by the client.
    annotations: Mapping[str, Any]  #: Of all tasks that have none of their own.
    priority: Any = 0  #: The user's priorities by key, or one for all.
    #: Members of each fused task in topological order.
    groups: dict[Key, list[Key]] = field(default_factory=dict)
    originals: dict[Key, GraphNode] = field(default_factory=dict)  #: The members before fusion.
    #: What each member of a fused reduction read before fusion, for `dask.order`. A member with one
    #: input is replaced by that input.
    trees: dict[Key, set[Key]] = field(default_factory=dict)
    #: The siblings of each bundle.
    chosen: list[list[Key]] = field(default_factory=list)
    #: Tasks that a bundle or pick replaces.
    bundles: dict[Key, list[Key]] = field(default_factory=dict)


def fuse_arriving(
    dsk: dict[Key, GraphNode], annotations: Mapping[str, Mapping[Key, Any]], sizes: Any
) -> dict[Key, GraphNode]:
    """Return the graph that is being read, with its groups fused; runs in the offload thread."""
    request = current.get()
    if request is None:
        return dsk
    try:
        return request.fusion.fuse(request, dsk, annotations, sizes or ChunkSizes())
    except CycleError:
        return dsk  # Dask reports the cycle
    except Exception as error:
        request.groups.clear()
        request.bundles.clear()
        request.trees.clear()
        request.chosen.clear()
        request.fusion.counters.caught("fuse", error)
        return dsk


def fuse_as_before(
    dsk: dict[Key, GraphNode],
    chosen: list[list[Key]],
    groups: Mapping[Key, list[Key]],
    sizes: ChunkSizes,
) -> dict[Key, GraphNode]:
    """Return a graph with the siblings and groups joined that another scheduler has chosen."""
    if chosen:
        dsk, _ = bundled(dsk, chosen, sizes)
    return _joined(groups, dsk)


def _joined(groups: Mapping[Key, list[Key]], dsk: Mapping[Key, GraphNode]) -> dict[Key, GraphNode]:
    gone = {key for members in groups.values() for key in members[:-1]}
    left = {key: node for key, node in dsk.items() if key not in gone}
    left.update((head, join(head, members[:-1], dsk)) for head, members in groups.items())
    return left


class GraphFusion(ArrivingGraphs):
    """Fuses tasks of a scheduler's graphs; ``subgraphs`` allows more than linear chains.

    ``expected`` has the bytes of results that are not made yet, as of a collection that was
    persisted just before.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        counters: Counters,
        expected: Mapping[Key, int],
        *,
        subgraphs: bool,
    ) -> None:
        super().__init__(scheduler, current, in_force)
        self.subgraphs = subgraphs
        self.counters = counters
        self.expected = expected
        self._fused: set[Key] = set()
        self._purge_at = 1000

    def of_message(self, message: dict[str, Any]) -> FusionRequest | None:
        """Return the request for the graph in a message; None if nothing is to be fused."""
        # An actor is not a function of its inputs.
        if not message.keys() >= _NEEDED or message["actors"]:
            return None
        priority = message.get("user_priority", 0)
        return FusionRequest(self, message["keys"], message["annotations"] or {}, priority)

    def fuse(
        self,
        request: FusionRequest,
        dsk: dict[Key, GraphNode],
        annotations: Mapping[str, Mapping[Key, Any]],
        sizes: ChunkSizes,
    ) -> dict[Key, GraphNode]:
        """Fuse the graph's groups and record the fused tasks; raise a ValueError for a cycle."""
        own = dsk.keys()
        if len(dsk) < 2 or all(own.isdisjoint(node.dependencies) for node in dsk.values()):
            return dsk  # no task reads another, as in `Client.map`
        keys, found = self._group(request, dsk, annotations, sizes)
        # Annotations refer to keys, which bundles would change.
        if found.bundles and not _annotated(annotations, request):
            # a task that fails takes its siblings with it
            safe = [[keys[i] for i in b if is_safe(dsk[keys[i]])] for b in found.bundles]
            if chosen := [bundle for bundle in safe if len(bundle) > 1]:
                with_bundles, bundles = bundled(dsk, chosen, sizes)
                others, other = self._group(request, with_bundles, annotations, sizes)
                if len(set(other.heads)) < len(set(found.heads)):  # otherwise that saves no tasks
                    dsk, request.bundles, keys, found = with_bundles, bundles, others, other
                    request.chosen = chosen
        groups: dict[Key, list[Key]] = {}
        for i, place in enumerate(found.heads):
            if place != i:
                groups.setdefault(keys[place], []).append(keys[i])
        if not groups:
            return dsk
        for head, members in groups.items():
            members.append(head)
            request.originals.update((key, dsk[key]) for key in members)
        left = _joined(groups, dsk)
        for head, members in groups.items():
            if (count := len(left[head].dependencies)) > 1:  # others have no branches
                steps = _branching_steps(members, dsk)
                if count > max(map(len, steps.values())):
                    request.trees.update(steps)
        request.groups = groups
        return left

    def _group(
        self,
        request: FusionRequest,
        dsk: dict[Key, GraphNode],
        annotations: Mapping[str, Mapping[Key, Any]],
        sizes: ChunkSizes,
    ) -> tuple[list[Key], Groups]:
        """Return the tasks in topological order, and their groups."""
        known: Mapping[Key, TaskState] = self.scheduler.tasks
        # Linear chains are the same in any order. Fusion of subgraphs, and the order within a
        # group, must not depend on names or the hash seed.
        keys, inputs = canonically_numbered(dsk) if self.subgraphs else numbered(dsk)
        wanted = set(request.keys)
        joinable = Joinable()
        every, some = request.annotations.get("retries"), annotations.get("retries", {})
        roles, uncertain = bytearray(), bytearray()
        for key in keys:
            node = dsk.get(key)
            # Tasks that the scheduler already has stay: they may be in memory or running.
            fit = fused_tasks.ALONE if node is None or key in known else joinable(node)
            if fit == fused_tasks.UNCERTAIN and (every or some.get(key)):
                fit = fused_tasks.ALONE  # a retry would run the steps before it again
            if fit == fused_tasks.ALONE:
                roles.append(ALONE)
            else:
                roles.append(VISIBLE if key in wanted else FREE)
            uncertain.append(fit == fused_tasks.UNCERTAIN)
        kinds = _kinds(keys, dsk, annotations, request)
        nbytes, sized = _sizes(keys, dsk, sizes, known, self.expected)
        if not self.subgraphs:
            graph = OperandGraph(keys, inputs, nbytes, sized)
            return keys, Groups(group_heads(graph, roles, kinds), ())
        batches = [
            key_split(key) if unsure or not size else None
            for key, unsure, size in zip(keys, uncertain, sized, strict=True)
        ]
        remembered = len(keys) <= MOST_OPERANDS
        return keys, find_groups(
            without_tokens(keys) if remembered else keys,
            inputs.starts,
            inputs.flat,
            nbytes,
            sized,
            bytes(roles),
            kinds,
            batches,
            [sizes.within.get(key, 0) for key in keys] if sizes.within else [],
            self._cluster(),
        )

    def _cluster(self) -> ClusterLimits:
        # A copy, made at once: the event loop's thread may add or remove workers. The values of a
        # SortedDict are read one by one.
        workers = list(dict.values(self.scheduler.workers))
        memory = [ws.memory_limit / (ws.nthreads or 1) for ws in workers]
        return ClusterLimits(len(workers), self.scheduler.total_nthreads, min(memory, default=0.0))

    def reconcile(
        self, dsk: dict[Key, GraphNode], ordered: Mapping[Key, Any], wanted: Iterable[Key]
    ) -> Mapping[Key, Any]:
        """Adapt a graph in place to the scheduler's tasks; return its order."""
        try:
            return self._reconcile(current.get(), dsk, ordered, wanted)
        except Exception as error:
            self.counters.caught("reconcile", error)
            return ordered

    def _reconcile(
        self,
        request: FusionRequest | None,
        dsk: dict[Key, GraphNode],
        ordered: Mapping[Key, Any],
        wanted: Iterable[Key],
    ) -> Mapping[Key, Any]:
        known: dict[Key, TaskState] = self.scheduler.tasks
        if request is not None and request.groups:
            ordered = self._split_known(request, dsk, ordered)
            self.has_fused(request.groups)
            self.count(request)
        # A fused task that is sent again in another form keeps its first run spec, which fits the
        # dependencies of the existing task.
        differ = False
        for key in self._fused & dsk.keys() & known.keys():
            first = known[key].run_spec
            if isinstance(first, GraphNode) and first.dependencies <= known.keys():
                differ |= first.dependencies != dsk[key].dependencies
                dsk[key] = first
        if differ:
            _leave_out_unneeded(dsk, wanted)
        if len(self._fused) > self._purge_at:
            self._fused &= known.keys() | dsk.keys()
            self._purge_at = 1000 + 2 * len(self._fused)
        return ordered

    def has_fused(self, keys: Iterable[Key]) -> None:
        """Take note of fused tasks; they keep their run spec when they are sent again."""
        self._fused.update(keys)

    def joined(self, ts: TaskState) -> list[Key]:
        """Return the keys of the tasks that were fused or bundled into one, none for others."""
        # Other subgraphs are chains that Dask has fused.
        own = fused_tasks.tasks_in if ts.key in self._fused else bundled_in
        return own(ts.run_spec)

    def count(self, request: FusionRequest) -> None:
        """Count the fused tasks, and the tasks that replace them."""
        groups, bundles = request.groups, request.bundles
        if not bundles:
            self.counters.fused_into += len(groups)
            self.counters.fused += sum(map(len, groups.values()))
            return
        members = {key for group in groups.values() for key in group}
        self.counters.fused_into += len(groups) + sum(key not in members for key in bundles)
        self.counters.fused += sum(key not in bundles for key in members)
        # picks of a bundle are counted with it
        self.counters.fused += sum(len(own) for own in bundles.values() if len(own) > 1)

    def _split_known(
        self, request: FusionRequest, dsk: dict[Key, GraphNode], ordered: Mapping[Key, Any]
    ) -> Mapping[Key, Any]:
        """Undo the fusion of tasks that arrived with another graph in the meantime."""
        known = self.scheduler.tasks.keys()
        if known.isdisjoint(request.originals.keys()):  # the smaller of both is looked through
            return ordered
        found = [
            head
            for head, members in request.groups.items()
            if head in dsk and not known.isdisjoint(members)
        ]
        if not found:
            return ordered
        places = dict(ordered)
        for head in found:
            members = request.groups.pop(head)
            last = places.get(head, 0)
            for place, key in enumerate(members, start=1):
                dsk[key] = request.originals[key]
                places[key] = last - 1 + place / len(members)
        return places


def _leave_out_unneeded(dsk: dict[Key, GraphNode], wanted: Iterable[Key]) -> None:
    """Remove tasks that no wanted one needs.

    Dask creates no states for their inputs, but looks these up if it knows the task already.
    """
    needed: set[Key] = set()
    stack = list(wanted)
    while stack:
        key = stack.pop()
        if key in dsk and key not in needed:
            needed.add(key)
            stack.extend(dsk[key].dependencies)
    for key in dsk.keys() - needed:
        del dsk[key]


def _branching_steps(members: list[Key], dsk: Mapping[Key, GraphNode]) -> dict[Key, set[Key]]:
    """Return what the members of a group read, the head last; those with one input are skipped."""
    steps: dict[Key, set[Key]] = {}
    instead: dict[Key, Key] = {}
    for key in members:
        inputs = {instead.get(other, other) for other in dsk[key].dependencies}
        if len(inputs) == 1 and key != members[-1]:
            (instead[key],) = inputs
        else:
            steps[key] = inputs
    return steps


def _sizes(
    keys: list[Key],
    dsk: Mapping[Key, GraphNode],
    sizes: ChunkSizes,
    known: Mapping[Key, TaskState],
    expected: Mapping[Key, int],
) -> tuple[list[float], bytes]:
    exact, estimated = sizes.exact, sizes.estimated
    nbytes: list[float] = []
    for key in keys:
        size = exact.get(key)
        if size is None:
            size = estimated.get(key, -1)
            if size < 0:
                ts, node = known.get(key), dsk.get(key)
                if ts is not None:
                    size = ts.nbytes if ts.nbytes >= 0 else expected.get(key, -1)
                elif isinstance(node, DataNode):
                    size = safe_sizeof(node.value)
        nbytes.append(size)
    return with_averages(nbytes)


def _annotated(annotations: Mapping[str, Mapping[Key, Any]], request: FusionRequest) -> bool:
    """Return whether annotations or priorities may differ between tasks."""
    return (
        any(annotations.values())
        or isinstance(request.priority, Mapping)
        or any(map(callable, request.annotations.values()))
    )


def _kinds(
    keys: list[Key],
    dsk: Mapping[Key, GraphNode],
    annotations: Mapping[str, Mapping[Key, Any]],
    request: FusionRequest,
) -> list[int]:
    """Return a number for each task; tasks with equal annotations share it."""
    if not _annotated(annotations, request):
        return [0] * len(keys)
    tables = [table for table in annotations.values() if table]
    if isinstance(request.priority, Mapping):
        tables.append(request.priority)
    calls = [value for value in request.annotations.values() if callable(value)]
    numbers: dict[tuple[str, ...], int] = {}
    return [
        numbers.setdefault(
            (
                *(repr(table[key]) if key in table else "" for table in tables),
                *(repr(call(key)) if key in dsk else "" for call in calls),
            ),
            len(numbers),
        )
        for key in keys
    ]
