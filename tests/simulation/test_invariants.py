"""What must be true of any run under the plugin, whatever the graph and whatever befalls it.

The examples are the same in every run; ``MARSCHED_EXAMPLES=500`` tries more of them.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from dask.delayed import Delayed, delayed
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from dask_marsched.core.graph import Edges, OperandGraph
from dask_marsched.core.roles import roles
from dask_marsched.policies.unit_queues import UnitQueues
from dask_marsched.policies.withholding import Offer
from dask_marsched.scheduler_plugin import MarsSchedulerPlugin
from dask_marsched.simulation import Costs, SimulationReport, simulate

EXAMPLES = int(os.environ.get("MARSCHED_EXAMPLES", "40"))
#: Seconds that it may take from the end of a task to the start of the next one: messages in
#: batches there and back, a fetch or two. Tasks take several times that, so that a worker that
#: was passed over once shows.
GAP = 0.03
SECONDS = (0.1, 0.2, 0.4)
SATURATION = 1.1
#: Without joining: each task of a `Job` is to be seen.
POLICIES = ("default+off", "dfs+off", "bfs+off")


@dataclass(frozen=True)
class Job:
    """A graph: the tasks that each task reads, their durations (seconds) and sizes (bytes)."""

    inputs: tuple[tuple[int, ...], ...]
    seconds: tuple[float, ...]
    nbytes: tuple[int, ...]

    def key(self, i: int) -> str:
        return f"task-{i}"

    def wanted(self) -> list[int]:
        """The tasks that no other reads."""
        read = {j for row in self.inputs for j in row}
        return [i for i in range(len(self.inputs)) if i not in read]

    def collections(self) -> list[Delayed]:
        tasks: list[Delayed] = []
        for i, row in enumerate(self.inputs):
            tasks.append(delayed(max)([tasks[j] for j in row], dask_key_name=self.key(i)))
        return [tasks[i] for i in self.wanted()]

    def costs(self) -> Costs:
        keys = [self.key(i) for i in range(len(self.inputs))]
        return Costs(
            dict(zip(keys, self.nbytes, strict=True)), dict(zip(keys, self.seconds, strict=True))
        )

    def initial(self, policy: str, parallelism: int) -> list[int]:
        """The tasks that are withheld: those that read nothing or, by default, only hubs."""
        n = len(self.inputs)
        if policy != "default+off":
            return [i for i in range(n) if not self.inputs[i]]
        # Nothing is known of sizes before the first results.
        graph = OperandGraph(range(n), Edges.of(self.inputs), [1.0] * n, b"\0" * n)
        return roles(graph, parallelism).initial_operands()


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    n = draw(st.integers(2, 50), label="tasks")
    fan_in = draw(st.sampled_from([1, 2, 6]), label="fan in")
    roots = draw(st.sampled_from([0.2, 0.5, 0.8]), label="share of roots")
    rng = np.random.default_rng(draw(st.integers(0, 2**32), label="graph"))
    hub = draw(st.booleans(), label="hub")
    inputs: list[tuple[int, ...]] = []
    for i in range(n):
        near = 0 if rng.random() < roots else int(rng.integers(1, fan_in + 1))
        row = set(rng.integers(0, i, near).tolist()) if i else set()
        if hub and i and rng.random() < 0.8:
            row.add(0)
        inputs.append(tuple(sorted(row)))
    seconds, nbytes = rng.choice(SECONDS, n), rng.choice([1, 1000, 1_000_000], n)
    return Job(tuple(inputs), tuple(seconds.tolist()), tuple(nbytes.tolist()))


@st.composite
def faults(draw: st.DrawFn, workers: int, kinds: tuple[str, ...]) -> list[tuple[float, str, int]]:
    """Workers that die (three at most, and never the last one) and workers that join."""
    alive = set(range(workers))
    free = {workers: 0.0}  # numbers that may join, and since when
    kills, found = 0, []
    for at in sorted(draw(st.lists(st.floats(0.01, 2.0), max_size=5, unique=True), label="times")):
        kind = draw(st.sampled_from(kinds))
        if kind == "kill" and len(alive) > 1 and kills < 3:
            worker = draw(st.sampled_from(sorted(alive)))
            alive.remove(worker)
            free[worker] = at + 0.1  # not before the scheduler knows
            kills += 1
        else:
            may_join = [number for number, since in free.items() if since <= at]
            kind, worker = "join", draw(st.sampled_from(may_join))
            alive.add(worker)
            del free[worker]
            if worker == max(alive):
                free.setdefault(worker + 1, 0.0)
        found.append((at, kind, worker))
    return found


def run(job: Job, policy: Any = "default+off", **options: Any) -> SimulationReport:
    report = simulate(
        job.collections(),
        costs=job.costs(),
        policy=policy,
        isolated=False,
        validate=True,
        noise=0.0,
        **options,
    )
    assert report.plugin["active"]
    assert report.plugin["exceptions"] == {}, report.plugin["last_exception"]
    return report


def held_at_the_end(report: SimulationReport) -> set[Any]:
    """The results that living workers hold when the client has all that it wants."""
    held: Counter[Any] = Counter()
    for _, _, key, nbytes in report.timeline.changes:
        held[key] += nbytes
    return set(+held)


# ---- Every result, once ----------------------------------------------------------------------

many = settings(
    max_examples=EXAMPLES,
    derandomize=True,
    phases=[Phase.generate],  # to shrink takes minutes
    suppress_health_check=[HealthCheck.too_slow],
)
workers = st.integers(1, 6)
threads = st.sampled_from([1, 2, 3])


@pytest.mark.extended
@many
@given(jobs(), workers, threads, st.sampled_from(POLICIES))
def test_without_faults_every_operand_is_computed_once(
    job: Job, workers: int, threads: int, policy: str
) -> None:
    report = run(job, policy, workers=workers, threads=threads)
    ran = [key for key, *_ in report.timeline.tasks]
    assert sorted(ran) == sorted(map(job.key, range(len(job.inputs))))
    assert report.tasks_recomputed == 0
    if workers == 1:
        assert report.bytes_moved == 0
    # Nothing starts before its inputs are there.
    start = {key: begin for key, _, begin, _ in report.timeline.tasks}
    stop = {key: end for key, *_, end in report.timeline.tasks}
    for i, row in enumerate(job.inputs):
        assert all(stop[job.key(j)] <= start[job.key(i)] for j in row)


@pytest.mark.extended
@many
@given(st.data(), jobs(), workers, threads, st.sampled_from(POLICIES))
def test_nothing_is_lost_when_workers_die_and_join(
    data: st.DataObject, job: Job, workers: int, threads: int, policy: str
) -> None:
    planned = data.draw(faults(workers, ("kill", "join")))
    report = run(job, policy, workers=workers, threads=threads, faults=planned)
    ran = Counter(key for key, *_ in report.timeline.tasks)
    assert set(ran) == set(map(job.key, range(len(job.inputs))))
    assert report.tasks_recomputed == ran.total() - len(ran)
    assert held_at_the_end(report) >= set(map(job.key, job.wanted()))
    if not any(what == "kill" for _, what, _ in report.timeline.faults):
        assert report.tasks_recomputed == 0
    for at, what, worker in report.timeline.faults:
        if what == "kill":
            during = [row for row in report.timeline.tasks if row[1] == worker]
            assert not any(start < at < stop for *_, start, stop in during)


# ---- No worker idles while it might run something --------------------------------------------
#
# An initial operand is withheld only while no worker has a free thread. So whenever one is ready
# and has not been started, every thread is busy, or waits for a transfer, but for `GAP`. The
# exception is stated by `SlotRule`: of the operands sent, one in ten threads of each worker, at
# least one, may wait there behind others (tasks here are far longer than short ones are, so that
# there are never more). An operand that is not initial goes to where its inputs are, and may wait
# there while others idle: this says nothing on it.


def idle(report: SimulationReport, worker: int, joined: float, end: float) -> list[Any]:
    """Return when a worker had a thread free, was fetching nothing, and for longer than `GAP`.

    Each interval begins `GAP` late: from then on the worker should have been given something.
    """
    steps = [(joined, 0), (end, 0)]
    for _, w, start, stop in report.timeline.tasks:
        if w == worker:
            steps += [(start, 1), (stop, -1)]
    for _, to, _, _, start, stop, _ in report.timeline.transfers:
        if to == worker:  # a fetch may be what all free threads wait for
            steps += [(start, report.threads), (stop, -report.threads)]
    found, busy, since = [], 0, joined
    for at, change in sorted(steps):
        if busy < report.threads and since + GAP < at:
            found.append((since + GAP, at))
        was, busy = busy, busy + change
        if was >= report.threads > busy:
            since = at
    return found


def overlooked(job: Job, report: SimulationReport) -> list[tuple[int, float, int]]:
    """Return (worker, time, operands) where a worker idled while more than may wait were ready."""
    start = {key: begin for key, _, begin, _ in report.timeline.tasks}
    stop = {key: end for key, *_, end in report.timeline.tasks}
    # Ready, as the scheduler knows after `GAP`; taken, as it knew `GAP` before.
    spans = [
        (
            max((stop[job.key(j)] for j in job.inputs[i]), default=0.0) + GAP,
            start[job.key(i)] - GAP,
        )
        for i in job.initial(report.policy, report.workers * report.threads)
    ]
    joined = dict.fromkeys(range(report.workers), 0.0)
    joined |= {worker: at for at, what, worker in report.timeline.faults if what == "join"}
    may_wait = len(joined) * (math.ceil(SATURATION * report.threads) - report.threads)
    found = []
    for worker, since in joined.items():
        for begin, end in idle(report, worker, since, max(stop.values())):
            for at in {begin, *(ready for ready, _ in spans if begin < ready < end)}:
                ready = sum(r <= at < taken for r, taken in spans)
                if ready > may_wait:
                    found.append((worker, at, ready))
    return found


@pytest.mark.extended
@many
@given(st.data(), jobs(), workers, threads, st.sampled_from(POLICIES))
def test_no_worker_idles_while_an_operand_is_withheld(
    data: st.DataObject, job: Job, workers: int, threads: int, policy: str
) -> None:
    joins = data.draw(faults(workers, ("join",)))
    report = run(job, policy, workers=workers, threads=threads, faults=joins)
    assert overlooked(job, report) == []


class Partial(UnitQueues):
    """Has nothing for one of the workers, or never takes anything over from another."""

    def __init__(self, left_out: str = "", share: bool = True) -> None:
        super().__init__()
        self.left_out = left_out
        self.share = share

    def offer(self, worker: Any, locality: Any) -> Offer | None:
        offer = super().offer(worker, locality)
        if worker.startswith(self.left_out or "-") or (
            offer is not None and offer.how == "taken" and not self.share
        ):
            return None
        return offer


@pytest.mark.parametrize("options", [{"left_out": "tcp://10.0.0.1"}, {"share": False}])
def test_a_worker_that_is_passed_over_is_found(options: dict[str, Any]) -> None:
    """The test above can fail: with these queues it does."""
    n = 24
    job = Job(((),) * n + (tuple(range(n)),), (0.1,) * (n + 1), (1000,) * (n + 1))
    broken = MarsSchedulerPlugin(assignment="dfs", fusion="off", withholding=Partial(**options))
    for policy, found in ((broken, True), ("dfs+off", False)):
        report = run(job, policy, workers=2, threads=1, faults=[(0.5, "join", 2)])
        assert bool(overlooked(job, report)) is found
