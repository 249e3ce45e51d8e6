"""The memory of a simulated worker."""

from itertools import pairwise

import dask
import pytest
import zict

from dask_marsched.simulation import Costs, simulate
from dask_marsched.simulation.cluster.clock import EPOCH, EventQueue
from dask_marsched.simulation.cluster.memory import MemoryMonitor, Result, SpillingStore


class Watched:
    """A monitor of 1,000 bytes (spills results at 600, the process at 700, pauses at 800)."""

    def __init__(self, limit=1000):
        self.queue = EventQueue()
        self.held = []
        self.disk = []
        self.pauses = []
        self.monitor = MemoryMonitor(
            self.queue, limit, lambda key, change: self.held.append((key, change)),
            self.disk.append, lambda paused: self.pauses.append((self.now(), paused)),
        )  # fmt: skip
        self.store = self.monitor.store

    def now(self):
        return round(self.queue.now - EPOCH, 3)

    def run(self, until):
        self.queue.at(EPOCH + until, lambda: None)
        while self.queue.essential:
            self.queue.step()


@pytest.fixture
def watched():
    return Watched()


def test_the_least_recently_used_result_goes_to_disk_above_the_target(watched):
    for name in "abc":
        watched.store[name] = Result(200)
    assert watched.store["a"].nbytes == 200
    watched.store["d"] = Result(100)
    assert set(watched.store.fast) == {"a", "c", "d"}
    assert watched.disk == [200]
    assert watched.monitor.held == 500 == sum(change for _, change in watched.held)
    assert sorted(watched.store) == ["a", "b", "c", "d"]


def test_a_result_comes_back_from_disk_and_another_one_goes(watched):
    for name in "abcd":
        watched.store[name] = Result(200)
    assert watched.store["a"].nbytes == 200
    assert watched.disk == [200, -200, 200]
    assert set(watched.store.fast) == {"a", "c", "d"}
    del watched.store["b"]
    del watched.store["a"]
    assert watched.monitor.held == 400
    assert sum(watched.disk) == 200  # what was on disk is forgotten, not read


def test_a_result_larger_than_the_target_stays_on_disk(watched):
    watched.store["big"] = Result(650)
    assert watched.store["big"].nbytes == 650
    assert watched.disk == [650, -650]
    assert watched.monitor.held == 0


def test_the_process_spills_and_pauses_at_the_next_look(watched):
    watched.store["a"] = Result(400)
    watched.monitor.promise(450)
    watched.run(until=0.25)
    assert watched.pauses == [(0.1, True), (0.2, False)]  # what was spilled made room
    assert watched.disk == [400]


def test_a_worker_is_paused_as_long_as_nothing_can_be_spilled(watched):
    watched.monitor.promise(900)
    watched.run(until=0.35)
    assert watched.pauses == [(0.1, True)]
    assert not watched.monitor.exceeded
    watched.monitor.promise(60)
    assert watched.monitor.exceeded
    watched.monitor.promise(-960)
    watched.run(until=0.55)
    assert watched.pauses == [(0.1, True), (0.4, False)]


def test_thresholds_can_be_switched_off():
    names = ("target", "spill", "pause", "terminate")
    with dask.config.set({f"distributed.worker.memory.{name}": False for name in names}):
        watched = Watched()
    watched.store["a"] = Result(5000)
    watched.run(until=0.3)
    assert watched.pauses == watched.disk == []
    assert not watched.monitor.exceeded


def test_without_a_target_spilling_stops_where_it_starts():
    with dask.config.set({"distributed.worker.memory.target": False}):
        watched = Watched()
    for name in "abcd":
        watched.store[name] = Result(180)
    watched.run(until=0.15)
    assert watched.disk == [180]


def test_results_are_where_distributed_would_have_them():
    theirs = zict.Buffer({}, {}, 600, weight=lambda key, result: result.nbytes)
    ours = SpillingStore(600, lambda key, change: None, lambda nbytes: None)
    for step in range(300):
        key, nbytes = step * 7 % 13, 50 + step * 31 % 640
        for store in (theirs, ours):
            if key not in store:
                store[key] = Result(nbytes)
            elif step % 3:
                assert store[key].nbytes
            else:
                del store[key]
        assert list(ours.fast) == list(theirs.fast.order)
        assert set(ours) == set(theirs)
    assert any(result.nbytes > 600 for result in ours.values())


@pytest.mark.parametrize("cores", [None, 4])
def test_a_task_starts_when_its_input_is_back_from_disk_which_counts_once(cores):
    big = [dask.delayed(int)(i, dask_key_name=f"big-{i}") for i in range(6)]
    small = [dask.delayed(max)(x, dask_key_name=f"small-{i}") for i, x in enumerate(big)]
    gate = dask.delayed(max)(*small, dask_key_name="gate")
    last = [dask.delayed(max)(x, gate, dask_key_name=f"last-{i}") for i, x in enumerate(big)]
    nbytes = {x.key: 10**9 for x in big} | {x.key: 1 for x in (*small, gate, *last)}
    report = simulate(
        last, workers=1, cores=cores, memory_limit="4GB", disk_bandwidth="500MB/s", noise=0,
        costs=Costs(nbytes, dict.fromkeys(nbytes, 1.0)), policy="stock", isolated=False,
    )  # fmt: skip
    starts = sorted(start for key, _, start, _ in report.timeline.tasks if "last" in key)
    reads = [time for time, _, moved in report.timeline.spills if moved == -(10**9)]
    assert reads
    for time in reads:
        assert min(start for start in starts if start >= time) >= time + 2
    # One result is read, maybe another one written to make room for it, 2 s each; 1 s is the task.
    assert all(later - sooner < 5.1 for sooner, later in pairwise(starts))
