"""Advises changes to a computation; each is checked against its graph or simulated."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from dask.utils import format_bytes, format_time, key_split

from dask_marsched.host.twin.literals import data_nbytes
from dask_marsched.scheduler_plugin import MarsSchedulerPlugin
from dask_marsched.simulation.costs.costs import Costs
from dask_marsched.simulation.costs.graph_facts import GraphFacts
from dask_marsched.simulation.costs.persisted import as_persisted
from dask_marsched.simulation.explain.memory_need import MemoryNeed, memory_need
from dask_marsched.simulation.explain.runs import SimulationRunner
from dask_marsched.simulation.explain.two_passes import find_barrier, split_in_two
from dask_marsched.simulation.report.report import SimulationReport

#: A change is advised if memory or makespan shrink to at most this share.
_WORTH = 0.7
#: Seconds of a task below which Dask's overhead matters.
_SHORT = 0.02
#: Largest chunk that is recommended, in bytes.
_LARGE_CHUNK = 128 * 2**20
#: Bytes of data inside a graph above which they are reported.
_LARGE_LITERALS = 64 * 2**20


@dataclasses.dataclass(frozen=True)
class Advice:
    """A recommended change."""

    rule: str
    reason: str  #: The finding of the rule in the graph.
    change: str
    checked: str  #: How the change was checked, with which result.


@dataclasses.dataclass(frozen=True)
class AdviceContext:
    """A computation, its graph, and a simulation with its timeline and the memory it needed."""

    collections: list[Any]
    facts: GraphFacts
    report: SimulationReport
    need: MemoryNeed
    memory_limit: int  #: Of each worker, in bytes.
    runner: SimulationRunner  #: Simulates changes.

    def what_if(self, name: str, **changes: Any) -> tuple[SimulationReport, MemoryNeed] | None:
        """Simulate with other arguments; None if no time is left or it fails."""
        outcome = self.runner.run({name: {"memory_limit": 2**50} | changes}).get(name)
        if outcome is None or outcome.report is None:
            return None
        return outcome.report, memory_need(outcome.report, self.facts.temporaries)

    def relief(self, name: str, **changes: Any) -> tuple[SimulationReport, MemoryNeed] | None:
        """Simulate with other arguments; None unless a worker's peak shrinks enough."""
        found = self.what_if(name, **changes)
        return None if found is None or found[1].total > _WORTH * self.need.total else found


def advise(context: AdviceContext) -> list[Advice]:
    """Return the advice of all rules, the most important first."""
    rules = (
        gathered_result, held_for_reduction, too_large_chunks, fewer_threads, all_to_all,
        other_order, tiny_chunks, one_long_task, literals_in_graph, guessed_sizes,
    )  # fmt: skip
    return [advice for rule in rules for advice in rule(context)]


def _peaks(before: MemoryNeed, after: MemoryNeed) -> str:
    return f"a worker's peak is {format_bytes(after.total)} instead of {format_bytes(before.total)}"


def _time(seconds: float) -> str:
    return str(format_time(seconds).strip())


def _makespans(before: float, after: float) -> str:
    return f"it takes {_time(after)} instead of {_time(before)}"


def gathered_result(context: AdviceContext) -> Iterator[Advice]:
    """Find large results that are put together on one worker."""
    facts = context.facts
    largest = max(facts.keys, key=facts.nbytes)
    nbytes = facts.nbytes(largest)
    crowded = context.need.limit > context.memory_limit or nbytes > context.memory_limit / 4
    if not (crowded and nbytes > context.need.held / 4) or "finalize" not in str(largest):
        return
    found = context.relief("results kept", collection=as_persisted(context.collections))
    if found is None:
        return
    yield Advice(
        "gathered-result",
        f"The result, {format_bytes(nbytes)}, is put together on one worker and sent to the "
        "client.",
        "Store it from the workers (to_zarr, store) or leave it there (persist).",
        f"simulated with persist: {_peaks(context.need, found[1])}",
    )


def held_for_reduction(context: AdviceContext) -> Iterator[Advice]:
    """Find chunks that all wait for something computed from all of them."""
    top = context.report.peak_groups(1)
    if not top or top[0].share < 0.4:
        return
    barrier = find_barrier(context.facts, top[0].group)
    if barrier is None:
        return
    passes = split_in_two(context.facts, barrier)
    facts = context.facts
    costs = Costs(
        {key: facts.nbytes(key) for key in facts.tasks},
        {key: facts.seconds(key) for key in facts.tasks},
        overhead=facts.overhead,
    )
    found = []
    for number, collection in enumerate(passes, 1):
        run = context.relief(f"pass {number} of 2", collection=collection, costs=costs)
        if run is None:
            return
        found.append(run)
    need = max((need for _, need in found), key=lambda need: need.total)
    name = key_split(next(iter(barrier)))
    makespan = sum(report.makespan for report, _ in found)
    yield Advice(
        "held-for-reduction",
        f"The chunks of {top[0].group} are held until {name} is known: it is computed from all of "
        "them, and they are needed again together with it.",
        f"Compute {name} first, by itself, and build the rest on its value: the chunks are then "
        "computed twice, but not held.",
        f"simulated as two passes: {_peaks(context.need, need)}, "
        f"{_makespans(context.report.makespan, makespan)}",
    )


def too_large_chunks(context: AdviceContext) -> Iterator[Advice]:
    """Find tasks of which a worker's threads together need most of its memory."""
    facts, threads = context.facts, context.report.threads
    inner = (key for key in facts.tasks if key not in facts.keys)
    worst = max(inner, key=facts.footprint, default=None)
    if worst is None:
        return
    nbytes = facts.footprint(worst)
    if threads * nbytes <= context.memory_limit / 2:
        return
    pieces = math.ceil(threads * nbytes / (context.memory_limit / 4))
    group = key_split(worst)
    axis, wide = _axis_to_split(context, worst)
    along = "" if axis is None else f" along axis {axis} ({wide} elements now)"
    yield Advice(
        "too-large-chunks",
        f"A task of {group} takes {format_bytes(nbytes)} for its inputs, its output and what it "
        f"holds in between; {threads} at a time take more than half of "
        f"{format_bytes(context.memory_limit)}.",
        f"Make its chunks {pieces} times smaller{along}.",
        "computed from the sizes of the chunks in the graph",
    )


def _axis_to_split(context: AdviceContext, key: Any) -> tuple[int | None, int]:
    """Return the axis to split a task's largest operand along, and its length there now.

    Axes in several chunks come first, since the computation copes with splitting them.
    """
    operands = [key, *context.facts.tasks[key].dependencies]
    key = max(operands, key=context.facts.nbytes)
    grid = context.facts.grid(key)
    shape = None if grid is None else grid.shape(key)
    if grid is None or not shape:
        return None, 0
    axis = max(range(len(shape)), key=lambda i: (len(grid.lengths[i]) > 1, shape[i]))
    return axis, shape[axis]


def fewer_threads(context: AdviceContext) -> Iterator[Advice]:
    """Find out whether it would fit with one thread per worker."""
    report, need = context.report, context.need
    if report.threads == 1 or need.limit <= context.memory_limit:
        return
    found = context.relief("1 thread", threads=1)
    if found is None or found[1].limit > context.memory_limit:
        return
    yield Advice(
        "fewer-threads",
        f"{report.threads} tasks at a time on a worker need more than its memory.",
        "Run workers with one thread.",
        f"simulated with 1 thread: {_peaks(need, found[1])}, "
        f"{_makespans(report.makespan, found[0].makespan)}",
    )


def all_to_all(context: AdviceContext) -> Iterator[Advice]:
    """Find rechunking in which every new chunk needs pieces of most old ones."""
    facts = context.facts
    at_peak = context.report.peak_groups(5)
    for name, keys in facts.groups.items():
        last = [key for key in keys if _ends_rechunking(facts, key)]
        if not last:
            continue
        sources = [_sources(facts, key) for key in last]
        whole = set().union(*sources)
        fewest = min(map(len, sources))
        before = set(map(key_split, whole))
        share = sum(
            held.share
            for held in at_peak
            if held.group in before or held.group.startswith(_RECHUNKING)
        )
        if fewest < max(4, len(whole) / 2) or share < 0.5:
            continue
        shape = facts.shape_made_by("rechunk-merge", len(last))
        at_once = all(not facts.tasks[key].dependencies for key in whole)
        source = key_split(next(iter(whole)))
        if at_once and shape is not None:
            change = f"Let {source} make its chunks like {shape} in the first place."
        else:
            change = (
                f"Choose chunks for {source} that are whole along the axis that is needed whole, "
                "or let the pieces wait on disk: rechunk(..., method='p2p')."
            )
        yield Advice(
            "all-to-all",
            f"Each chunk of {name} needs pieces of {fewest} of {len(whole)} chunks of {source}: "
            "all of them must be there before the first is done.",
            change,
            f"found in the graph; these chunks are {share:.0%} of what is held at the peak",
        )


#: Tasks of rechunking by tasks; those of P2P, which waits on disk, have other names.
_RECHUNKING = ("rechunk-merge", "rechunk-split", "getitem")


def _ends_rechunking(facts: GraphFacts, key: Any) -> bool:
    """Return whether a task makes a chunk of the final ones, not of a stage in between."""
    name = key_split(key)
    if not name.startswith("rechunk-merge") or "transfer" in name:
        return False
    return not any(key_split(user).startswith(_RECHUNKING) for user in facts.dependents[key])


def _sources(facts: GraphFacts, key: Any) -> set[Any]:
    """Return the old chunks of which a new one has pieces."""
    found: set[Any] = set()
    seen, stack = {key}, [key]
    while stack:
        for dependency in facts.tasks[stack.pop()].dependencies:
            if dependency in seen:
                continue
            seen.add(dependency)
            if key_split(dependency).startswith(_RECHUNKING):
                stack.append(dependency)
            else:
                found.add(dependency)
    return found


def other_order(context: AdviceContext) -> Iterator[Advice]:
    """Find out whether another order of execution needs less memory, if it is short."""
    if context.need.limit <= context.memory_limit or context.report.policy != "default":
        return
    found = context.relief("deepest first", policy=MarsSchedulerPlugin(ordering="mars"))
    if found is None:
        return
    yield Advice(
        "other-order",
        "The order in which Dask would compute makes chunks wait for each other.",
        'Set marsched.ordering.policy: "mars", which runs the deepest tasks first.',
        f"simulated: {_peaks(context.need, found[1])}, "
        f"{_makespans(context.report.makespan, found[0].makespan)}",
    )


def tiny_chunks(context: AdviceContext) -> Iterator[Advice]:
    """Find tasks so short that overhead takes most of the time."""
    seconds = np.array(list(map(context.facts.seconds, context.facts.tasks)))
    if len(seconds) < 500 or (typical := float(np.median(seconds))) > _SHORT:
        return
    found = context.what_if("no overhead", task_overhead=0, message_cost=0, batch_cost=0)
    if found is None or found[0].makespan > _WORTH * context.report.makespan:
        return
    facts = context.facts
    group = max(facts.groups, key=lambda name: sum(map(facts.nbytes, facts.groups[name])))
    keys = facts.groups[group]
    size = float(np.median([facts.nbytes(key) for key in keys]))
    factor = math.ceil(_SHORT / max(typical, 1e-3))
    factor = max(2, min(factor, int(_LARGE_CHUNK / max(size, 1))))
    yield Advice(
        "tiny-chunks",
        f"{len(seconds)} tasks, half of them shorter than {_time(typical)}; the {len(keys)} chunks "
        f"of {group} have {format_bytes(int(size))} each.",
        f"Make the chunks about {factor} times larger: fewer tasks for the same work.",
        "simulated without overhead: " + _makespans(context.report.makespan, found[0].makespan),
    )


def one_long_task(context: AdviceContext) -> Iterator[Advice]:
    """Find a task during which the rest of the cluster waits."""
    facts = context.facts
    key = max(facts.tasks, key=facts.seconds)
    part = facts.seconds(key) / context.report.makespan
    if part < 0.4 or key in facts.keys or context.report.workers * context.report.threads < 2:
        return
    rows = context.report.timeline.tasks.rows
    longest = rows[int(np.argmax(rows["stop"] - rows["start"]))]
    begin, end = float(longest["start"]), float(longest["stop"])
    beside = np.clip(np.minimum(rows["stop"], end) - np.maximum(rows["start"], begin), 0, None)
    slots = context.report.workers * context.report.threads
    if float(beside.sum()) / (end - begin) - 1 > 0.3 * (slots - 1):
        return
    yield Advice(
        "one-long-task",
        f"One task of {key_split(key)}, on {format_bytes(facts.footprint(key))}, takes "
        f"{_time(facts.seconds(key))} of {_time(context.report.makespan)}.",
        "Cut it into several: more workers do not help as long as it is one.",
        f"simulated: {part:.0%} of the makespan",
    )


def literals_in_graph(context: AdviceContext) -> Iterator[Advice]:
    """Find large data inside the graph."""
    nbytes = data_nbytes(context.facts.tasks.values())
    if nbytes < _LARGE_LITERALS:
        return
    yield Advice(
        "data-in-graph",
        f"{format_bytes(nbytes)} of data are part of the graph: client and scheduler hold and send "
        "all of it.",
        "Let tasks read or make these data on the workers, or scatter them.",
        "found in the graph",
    )


def guessed_sizes(context: AdviceContext) -> Iterator[Advice]:
    """Find out whether many sizes are guessed."""
    facts = context.facts
    share = facts.sizes.get("guessed", 0) / max(1, len(facts.tasks))
    if share < 0.1:
        return
    yield Advice(
        "guessed-sizes",
        f"The sizes of {share:.0%} of the results are guesses, and so are the peaks above.",
        "Record a run on part of the data with dask_marsched.record(client), and give the file as "
        "costs.",
        "counted in the graph",
    )
