import asyncio
import dataclasses
import json
import math

import dask.array as da
import pytest
from distributed.diagnostics.plugin import SchedulerPlugin

from dask_marsched.simulation import simulate
from dask_marsched.simulation.costs.derived import OVERHEAD
from tests.simulation.local_costs import record_costs


@pytest.fixture(scope="module")
def stencil():
    a, b = (da.random.default_rng(seed).random((1200, 1200), chunks=150) for seed in (0, 1))
    return (a[1:, 1:] - b[:-1, :-1]).sum(axis=0)


@pytest.fixture(scope="module")
def costs(stencil):
    return dataclasses.replace(record_costs(stencil), seconds={})


@pytest.fixture
def run(stencil, costs):
    def run(**options):
        return simulate(stencil, costs=costs, **({"isolated": False, "policy": "stock"} | options))

    return run


def comparable(report):
    """Return all that must not differ between processes."""
    timeline = report.timeline
    return report.to_json(), timeline.tasks, timeline.transfers, timeline.memory


@pytest.mark.extended
@pytest.mark.parametrize("policy", ["stock", "default+off"])
@pytest.mark.parametrize("workers", [1, 4, 30])
def test_every_task_runs_once_under_validation(run, policy, workers, costs):
    report = run(policy=policy, workers=workers, validate=True)
    ran = [key for key, *_ in report.timeline.tasks]
    assert sorted(map(str, ran)) == sorted(map(str, costs.nbytes))
    assert report.tasks == len(ran)
    assert report.tasks_recomputed == 0
    assert not report.plugin.get("exceptions")
    if workers == 1:
        assert report.bytes_moved == report.transfers == 0


@pytest.mark.extended
def test_joined_tasks_take_as_long_as_their_parts_and_one_overhead(run):
    apart, joined = (
        run(policy=f"default+{fusion}", workers=4, validate=True) for fusion in ("off", "subgraphs")
    )
    busy = [sum(stop - start for *_, start, stop in r.timeline.tasks) for r in (apart, joined)]
    saved = OVERHEAD * (apart.tasks - joined.tasks)
    assert saved > 0.1 * busy[0]
    assert busy[1] == pytest.approx(busy[0] - saved, rel=0.05)  # durations scatter, task by task
    assert joined.tasks < 0.7 * apart.tasks
    fusion = joined.plugin["fusion"]
    assert fusion["operands"] - fusion["into"] == apart.tasks - joined.tasks
    assert not joined.plugin["exceptions"]


def test_the_report_agrees_with_its_timeline(run):
    report = run(workers=4)
    timeline = report.timeline
    assert report.bytes_moved == sum(transfer[3] for transfer in timeline.transfers) > 0
    assert report.transfers == len(timeline.transfers)
    assert report.peak_memory == max(held for _, held in timeline.memory)
    assert report.makespan >= max(stop for *_, stop in timeline.tasks)
    busy = sum(stop - start for *_, start, stop in timeline.tasks)
    assert report.utilisation == pytest.approx(busy / (report.makespan * 4), rel=0.01)
    assert max(report.peak_memory_per_worker.values()) <= report.peak_memory
    assert json.loads(report.to_json())["tasks"] == report.tasks


def test_threads_of_a_worker_run_at_the_same_time_but_no_more(run):
    report = run(workers=1, threads=3)
    steps = sorted(
        [(start, 1) for *_, start, _ in report.timeline.tasks]
        + [(stop, -1) for *_, stop in report.timeline.tasks]
    )
    running = most = 0
    for _, change in steps:
        running += change
        most = max(most, running)
    assert most == 3


@pytest.mark.extended
def test_cores_shared_by_workers_slow_them_down(run):
    alone, shared = (run(workers=4, task_overhead="5ms", cores=cores) for cores in (None, 1))
    assert shared.makespan >= shared.tasks * 0.005 > alone.makespan


def test_a_slow_network_costs_time(run):
    assert run(bandwidth="1MB/s").makespan > 2 * run(bandwidth="1GB/s").makespan


def test_bytes_between_hosts_are_part_of_the_bytes_moved(run):
    together, apart = run(workers=4, hosts=1), run(workers=4, hosts=2)
    assert together.bytes_between_hosts == 0 < together.bytes_moved
    assert 0 < apart.bytes_between_hosts < apart.bytes_moved


@pytest.mark.extended
@pytest.mark.parametrize("policy", ["stock", "default+off"])
def test_nothing_is_lost_when_workers_die_and_join(run, policy, costs):
    faults = [(0.05, "kill", 1), (0.06, "join", 4), (0.1, "kill", 0), (0.12, "join", 1)]
    report = run(policy=policy, workers=4, faults=faults, validate=True)
    assert {key for key, *_ in report.timeline.tasks} == set(costs.nbytes)
    assert report.tasks_recomputed > 0
    assert {worker for _, worker, *_ in report.timeline.tasks} == {0, 1, 2, 3, 4}
    last_on_dead = max(stop for _, worker, _, stop in report.timeline.tasks if worker == 0)
    assert last_on_dead <= 0.1


TROUBLE = {
    "cores": 2,
    "memory_limit": "1MB",
    "faults": [(0.05, "slow", 2, 3), (0.1, "kill", 1), (0.2, "join", 1)],
}


@pytest.mark.extended
@pytest.mark.parametrize("policy", [pytest.param("stock", marks=pytest.mark.slow), "default"])
@pytest.mark.parametrize("options", [{}, TROUBLE], ids=["calm", "trouble"])
def test_reports_are_bit_identical_across_processes(run, policy, options):
    first, second = (run(policy=policy, isolated=True, seed=3, **options) for _ in range(2))
    assert comparable(first) == comparable(second)


@pytest.mark.slow
def test_the_seed_varies_the_durations(run):
    assert run(seed=1).makespan != run(seed=2).makespan
    assert run(seed=1, noise=0.0).makespan == run(seed=2, noise=0.0).makespan


def test_several_collections_at_once_without_costs():
    x = da.ones((40, 40), chunks=20)
    report = simulate([x.sum(), (x + 1).mean(axis=0)], policy="stock", isolated=False)
    assert report.tasks > 4


def test_a_plugin_sees_the_graph_and_virtual_time():
    class Watcher(SchedulerPlugin):
        name = "watcher"
        tasks = 0

        def update_graph(self, scheduler, *, tasks, **kwargs):
            self.tasks = len(tasks)
            self.started = scheduler.time_started

        def report(self):
            return {"tasks": self.tasks}

    plugin = Watcher()
    report = simulate(da.ones(8, chunks=2).sum(), policy=plugin, isolated=False)
    assert plugin.tasks == report.tasks == report.plugin["tasks"]
    assert plugin.started == 1_000_000.0


def test_exceptions_of_a_plugin_are_raised():
    class Broken(SchedulerPlugin):
        name = "broken"

        def update_graph(self, scheduler, **kwargs):
            raise ZeroDivisionError("in the hook")

    with pytest.raises(RuntimeError, match="1 exceptions were logged") as error:
        simulate(da.ones(8, chunks=2).sum(), policy=Broken(), isolated=False)
    assert isinstance(error.value.__cause__, ZeroDivisionError)


async def _simulate_in_a_loop(run):
    return run(workers=2)


def test_it_runs_where_a_loop_is_running(run):
    inside = asyncio.run(_simulate_in_a_loop(run))
    assert inside.makespan > 0


def test_an_unknown_argument_is_an_error_that_lists_the_accepted(run):
    with pytest.raises(TypeError, match="'nic'; the cluster's are bandwidth, batch_cost"):
        run(nic=3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 0}, "workers must be 1 or more"),
        ({"threads": 0}, "threads must be 1 or more"),
        ({"workers": "4"}, "workers must be 1 or more, not 4"),
        ({"bandwidth": 0}, "^bandwidth must be more than 0"),
        ({"faults": [(0.1, "explode", 0)]}, "wrong fault .*; accepted are"),
        (
            {"policy": "no-such-policy"},
            "unknown policy 'no-such-policy'; accepted are 'stock', 'default', the assignments",
        ),
        ({"policy": None}, "unknown policy None; accepted are 'stock'"),
        ({"policy": "default+all"}, "must be one of off, chains, subgraphs, not 'all'"),
        ({"latency": "soon"}, "latency must be seconds or a text like '1ms', not 'soon'"),
        ({"bandwidth": "fast"}, "bandwidth must be bytes per second or a text like '1GB/s'"),
        ({"memory_limit": "much"}, "memory_limit must be bytes or a text like '16GiB'"),
        ({"workers": 2.5}, "workers must be 1 or more, not 2.5"),
        ({"seed": 0.5}, "seed must be a whole number, not 0.5"),
        ({"noise": "much"}, "noise must be a number, not 'much'"),
        ({"cores": "2"}, "cores must be a number, not '2'"),
        ({"cores": 0}, "cores must be more than 0, or None, not 0"),
        ({"resources": {"GPU": 0}}, "the resource 'GPU' must be more than 0, not 0"),
        ({"disk_bandwidth": 0}, "disk_bandwidth must be more than 0"),
        ({"faults": [(0.01, "join", 2)]}, "worker 2 cannot join at this time: it is there"),
        ({"faults": [(0.01, "kill", 7)]}, "no worker 7"),
        ({"memory_limit": 0}, "memory_limit must be more than 0"),
        ({"memory_limit": math.inf}, "memory_limit must be finite, not inf"),
        ({"latency": math.inf}, "latency must be finite, not inf"),
        ({"faults": [(0, "slow", 0, math.inf)]}, "factor must be finite, not inf"),
        ({"hosts": 0}, "hosts must be a whole number between 1 and 4"),
        ({"hosts": 1.5}, "hosts must be a whole number between 1 and 4, not 1.5"),
        ({"noise": 1.5}, "noise must be at least 0 and less than 1"),
    ],
)
def test_bad_input_is_one_clear_error(stencil, costs, options, message):
    with pytest.raises(ValueError, match=message):
        simulate(stencil, **({"costs": costs, "policy": "stock", "isolated": False} | options))


@pytest.mark.extended
def test_errors_cross_from_the_other_process(stencil, costs):
    with pytest.raises(ValueError, match="no worker 7"):
        simulate(stencil, costs=costs, policy="stock", isolated=True, faults=[(0.01, "kill", 7)])


def test_a_computation_without_workers_left_is_stuck_and_says_so(stencil, costs):
    faults = [(0.05, "kill", index) for index in range(4)]
    with pytest.raises(RuntimeError, match=r"stuck|failed"):
        simulate(stencil, costs=costs, policy="stock", isolated=False, faults=faults)


@pytest.mark.parametrize("policy", ["stock", "default"])
def test_a_worker_that_joins_late_ends_a_wait(stencil, costs, policy):
    faults = [*((0.05, "kill", index) for index in range(4)), (700, "join", 0)]
    report = simulate(stencil, costs=costs, policy=policy, isolated=False, faults=faults)
    assert report.makespan > 700
