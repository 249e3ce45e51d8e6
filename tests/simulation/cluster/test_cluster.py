"""What happens to a simulated cluster, and what it is asked to run."""

import asyncio

import dask
import dask.array as da
import pytest
from dask.delayed import Delayed, delayed
from distributed import Lock, secede, worker_client

from dask_marsched.simulation import Costs, simulate


def numbers(count=24, chunk=50_000):
    return da.random.default_rng(0).random(count * chunk, chunks=chunk)


@pytest.fixture
def run():
    def run(collection=None, **options):
        collection = numbers().sum() if collection is None else collection
        chosen = {"isolated": False, "policy": "stock", "noise": 0.0} | options
        return simulate(collection, **chosen)

    return run


def executions(report, worker):
    return [(start, stop) for _, number, start, stop in report.timeline.tasks if number == worker]


# Faults


@pytest.mark.parametrize("policy", ["stock", "default"])
def test_a_paused_worker_starts_nothing_until_it_goes_on(run, policy):
    report = run(
        policy=policy, faults=[(0.006, "pause", 1, 0.1)], task_overhead="5ms", validate=True
    )
    assert not [start for start, _ in executions(report, 1) if 0.012 < start < 0.106]
    assert report.seconds_paused == pytest.approx(0.1)
    assert [what for _, what, worker in report.timeline.faults] == ["pause"]
    assert report.tasks_recomputed == 0


@pytest.mark.parametrize("policy", ["stock", "default"])
@pytest.mark.parametrize("cores", [None, 2])
def test_a_scheduler_that_comes_back_has_lost_only_time(run, policy, cores):
    options = {"policy": policy, "task_overhead": "5ms", "hosts": 1, "cores": cores}
    undisturbed = run(**options)
    at = undisturbed.makespan / 2
    report = run(faults=[(at, "kill", "scheduler", 1.0)], validate=True, **options)
    tasks = [start for _, _, start, _ in report.timeline.tasks]
    assert not [start for start in tasks if at + 0.01 < start < at + 1]
    assert [start for start in tasks if start > at + 1]
    assert report.makespan == pytest.approx(undisturbed.makespan + 1, abs=0.05)
    assert report.tasks_recomputed == 0
    assert [(what, worker) for _, what, worker in report.timeline.faults] == [("kill", -1)]
    assert "kill scheduler at" in report._repr_html_()


def test_a_worker_that_dies_in_the_outage_is_missed_afterwards(run):
    faults = [(0.01, "kill", "scheduler", 1.0), (0.5, "kill", 1)]
    report = run(faults=faults, task_overhead="5ms")
    assert report.tasks_recomputed > 0
    assert 1 < report.makespan < run(task_overhead="5ms").makespan + 1.5


@pytest.mark.parametrize("cores", [None, 2])
@pytest.mark.parametrize(
    ("faults", "back"),
    [
        ([(0.01, "kill", "scheduler", 1.0), (0.5, "kill", "scheduler", 1.0)], 1.5),
        ([(0.01, "kill", "scheduler", 1.0), (0.5, "kill", "scheduler", 0.1)], 1.01),
    ],
)
def test_a_scheduler_that_is_killed_before_it_is_back(run, faults, back, cores):
    options = {"task_overhead": "5ms", "hosts": 1, "cores": cores}
    report = run(faults=faults, validate=True, **options)
    starts = [start for _, _, start, _ in report.timeline.tasks]
    assert not [start for start in starts if 0.02 < start < back]
    away = back - 0.01
    assert report.makespan == pytest.approx(run(**options).makespan + away, abs=0.05)
    assert report.tasks_recomputed == 0


def test_a_worker_that_joins_in_the_outage_begins_when_the_scheduler_is_back(run):
    faults = [(0.01, "kill", "scheduler", 1.0), (0.5, "join", 9), (0.9, "kill", "scheduler", 1.0)]
    report = run(faults=faults, task_overhead="20ms", validate=True)
    joined = executions(report, 9)
    assert joined
    assert min(start for start, _ in joined) > 1.9
    joins = [time for time, what, _ in report.timeline.faults if what == "join"]
    assert joins == [pytest.approx(1.9)]


def test_tasks_of_a_slow_worker_take_longer_from_then_on(run):
    report = run(faults=[(0.0, "slow", 2, 5)], task_overhead=0)
    slow, fast = (max(stop - start for start, stop in executions(report, n)) for n in (2, 1))
    assert slow == pytest.approx(5 * fast, rel=0.01)
    assert len(executions(report, 2)) < len(executions(report, 1))


def test_a_slow_link_slows_transfers_of_its_host_only(run):
    faults = [(0.0, "slow-link", 0, 1000)]
    x = numbers(8).rechunk(8 * 50_000)
    assert run(x, faults=faults).makespan > run(x).makespan + 0.3
    assert run(x, faults=faults, hosts=1).makespan == run(x, hosts=1).makespan


@pytest.mark.parametrize("policy", ["stock", "default"])
def test_what_a_dead_worker_held_is_computed_again(run, policy):
    x = numbers()
    y = da.stack([x, x + 1]).rechunk((2, 12 * 50_000)).sum()
    report = run(y, policy=policy, faults=[(0.03, "kill", 0)], validate=True)
    calm = run(y, policy=policy)
    lost = [key for key, worker, _, stop in report.timeline.tasks if worker == 0]
    assert lost
    ran = len(report.timeline.tasks)
    assert 0 < report.tasks_recomputed == ran - calm.tasks <= len(lost)


# Memory


def test_results_are_spilled_when_they_do_not_fit_and_that_takes_time(run):
    x = numbers(20)
    y = (x - x.mean()).sum()  # all chunks are held until the mean is known
    roomy, tight = run(y, workers=2), run(y, workers=2, memory_limit=10 * 400_000)
    assert roomy.bytes_spilled == 0
    assert tight.bytes_spilled > 10 * 400_000
    assert max(tight.peak_memory_per_worker.values()) <= 6 * 400_000 + 400_000
    assert tight.peak_memory < roomy.peak_memory
    assert tight.peak_managed == pytest.approx(roomy.peak_managed, rel=0.2)
    slow = run(y, workers=2, memory_limit=10 * 400_000, disk_bandwidth="10MB/s")
    assert slow.makespan > tight.makespan + tight.bytes_spilled / 2 / 10e6 / 2


def test_workers_pause_when_they_are_short_of_memory(run):
    """One of 8 workers fetches 7 chunks and makes one of 8: it needs the memory of 16."""
    x = numbers(8).rechunk(8 * 50_000)
    names = ("target", "spill")
    with dask.config.set({f"distributed.worker.memory.{name}": False for name in names}):
        roomy, tight, tighter = (
            run(x, workers=8, task_overhead="250ms", memory_limit=int(chunks * 400_000))
            for chunks in (30, 18, 16.5)
        )
    assert roomy.seconds_paused == 0 < tight.seconds_paused < tight.makespan
    assert tight.bytes_spilled == 0
    assert roomy.not_simulated == tight.not_simulated == ()
    assert any("nannies" in what for what in tighter.not_simulated)


def test_a_task_that_fits_nowhere_is_an_error_before_the_run(run):
    x = numbers(4).rechunk(4 * 50_000)
    with pytest.raises(ValueError, match=r"'rechunk-merge' needs 3.05 MiB \(3200000 bytes\)"):
        run(x, memory_limit="3MB")
    assert run(x, memory_limit=3_200_000).tasks == 6


# What is asked of it


def test_annotations_are_honoured(run):
    with dask.annotate(workers=[2], retries=1):
        bound = [delayed(increment)(number, dask_key_name=f"bound-{number}") for number in range(8)]
    free = [delayed(increment)(number) for number in bound]
    report = run(free)
    assert report.not_simulated == ()
    where = {str(key): worker for key, worker, *_ in report.timeline.tasks}
    assert {worker for key, worker in where.items() if key.startswith("bound")} == {2}
    with dask.annotate(resources={"GPU": 1}):
        y = delayed(sum)([1, 2], dask_key_name="gpu")
    assert run(y, resources={"GPU": 1}).not_simulated == ()
    with dask.annotate(workers=[3]):
        report = run(delayed(sum)([1, 2]))
    assert {worker for _, worker, *_ in report.timeline.tasks} == {3}


def test_restrictions_that_no_worker_satisfies_are_named(run):
    with dask.annotate(workers=["tcp://127.0.0.1:1234"], resources={"GPU": 1}):
        report = run(delayed(sum)([1, 2], dask_key_name="sum-here"))
    assert report.tasks == 1
    place, resource = report.not_simulated
    assert (
        place
        == "the restriction of 'sum-here' to ['tcp://127.0.0.1:1234']: there is no such worker"
    )
    assert resource == "the resources {'GPU': 1} of 'sum-here': no worker has them"


def seceding():
    secede()


def submitting():
    with worker_client() as client:
        return client.submit(sum, [1, 2]).result()


def locking():
    with Lock("x"):
        return 1


async def waiting():
    await asyncio.sleep(1)  # workload


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (seceding, "tasks that secede"),
        (submitting, "tasks that submit tasks"),
        (locking, r"tasks that wait for each other \(distributed.Lock\)"),
        (waiting, "coroutines"),
    ],
)
def test_what_tasks_do_besides_computing_is_named(run, function, message):
    report = run(delayed(function)())
    (named,) = report.not_simulated
    assert named.startswith(message.replace("\\", ""))
    assert named.endswith(f"(1 tasks, such as {function.__name__!r})")


def test_ordinary_graphs_hold_nothing_that_is_not_simulated(run):
    x = da.ones((40, 40), chunks=10)
    assert run([(x @ x.T).sum(), x.rechunk((40, 5)).mean(axis=0)]).not_simulated == ()


def increment(number):
    return number + 1


@pytest.mark.parametrize(
    ("collection", "error", "message"),
    [
        (
            Delayed("a", {"a": (increment, "b"), "b": (increment, "a")}),
            ValueError,
            "has a cycle: a -> b",
        ),
        (Delayed("a", {"b": (increment, 1)}), ValueError, "does not contain 'a', which is to be"),
        ([], ValueError, "No collections"),
        (3, TypeError, "not a Dask collection: int"),
    ],
)
def test_what_cannot_be_computed_is_one_clear_error(run, collection, error, message):
    with pytest.raises(error, match=message):
        run(collection)


# The cores of a host


def one_transfer(run, **options):
    """Return how long the one transfer of a graph with two tasks takes, in seconds."""
    x, y = (delayed(bytes)(10_000_000, dask_key_name=name) for name in "xy")
    z = delayed(len)([x, y], dask_key_name="z")
    costs = Costs({"x": 10**7, "y": 10**7, "z": 8}, dict.fromkeys("xyz", 0.1))
    exact = {"bandwidth": "100GB/s", "latency": 0, "copy_bandwidth": "1GB/s", "transfer_cost": 0}
    report = run(z, costs=costs, workers=2, threads=1, **exact, **options)
    ((*_, start, stop, _),) = report.timeline.transfers
    return stop - start


def test_on_shared_cores_the_ends_of_a_transfer_take_turns(run):
    assert one_transfer(run) == pytest.approx(0.01, rel=0.05)
    assert one_transfer(run, cores=8, idle_load=0) == pytest.approx(0.02, rel=0.05)
    assert one_transfer(run, cores=8, hosts=2, idle_load=0) == pytest.approx(0.01, rel=0.05)


def test_workers_of_a_host_share_large_results(run):
    two_hosts = one_transfer(run, cores=8, hosts=2, idle_load=0, policy="default")
    assert two_hosts == pytest.approx(0.01, rel=0.05)
    assert one_transfer(run, cores=8, idle_load=0, policy="default") == 0


def test_idle_processes_take_their_share_of_the_cores(run):
    long = {"costs": Costs({"x": 8}, {"x": 10.0}), "workers": 3, "cores": 1}
    x = delayed(len)("", dask_key_name="x")
    assert run(x, **long, idle_load=0.0).makespan == pytest.approx(10, rel=0.01)
    # Of three workers, and of a scheduler that needs 2.3 times as much
    assert run(x, **long, idle_load=0.25).makespan == pytest.approx(23.25, rel=0.01)
