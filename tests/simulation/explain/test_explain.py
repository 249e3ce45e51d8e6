import dataclasses
import json
import subprocess
import sys

import dask
import dask.array as da
import distributed
import numpy as np
import pytest

from dask_marsched import MarsSchedulerPlugin
from dask_marsched.simulation import simulate
from dask_marsched.simulation.costs.costs import Costs
from dask_marsched.simulation.costs.graph_facts import GraphFacts
from dask_marsched.simulation.explain.advice import (
    AdviceContext,
    held_for_reduction,
    other_order,
)
from dask_marsched.simulation.explain.explain import explain
from dask_marsched.simulation.explain.memory_need import MemoryNeed
from tests.processes import local_cluster
from tests.simulation.local_costs import record_costs

GiB = 2**30
QUICK = {"isolated": False, "workers": 2, "max_workers": 2}


def source(rows=8, columns=4, side=200, seed=0):
    rng = da.random.default_rng(seed)
    return rng.random((rows * side, columns * side), chunks=side)


def anomaly(side=800):
    x = source(rows=64, columns=1, side=side)
    return ((x - x.mean(axis=0)) ** 2).mean(axis=0)


@pytest.fixture(scope="module")
def explained():
    """An explanation of a computation whose chunks are all held for one reduction."""
    return explain(anomaly(), workers=4, threads=2, memory_limit="2GiB", isolated=True)


def rules(explanation):
    return [advice.rule for advice in explanation.advice]


@pytest.mark.extended
def test_the_forecast_is_that_of_the_simulation(explained):
    for policy, forecast in (("stock", explained.stock), ("default", explained.marsched)):
        report = simulate(
            anomaly(), workers=4, threads=2, memory_limit="2GiB", policy=policy, isolated=True
        )
        assert forecast.policy == policy
        assert forecast.makespan == report.makespan
        assert forecast.bytes_moved == report.bytes_moved
        assert forecast.peak_memory == report.peak_memory
        assert forecast.peak_per_worker == max(report.peak_memory_per_worker.values())
        assert forecast.peak_with_tasks >= forecast.peak_per_worker
        assert forecast.fits


@pytest.mark.extended
def test_the_smallest_limit_fits_and_the_one_below_does_not(explained):
    forecast = explained.marsched
    assert forecast.verified
    found = explain(anomaly(), workers=4, threads=2, memory_limit=forecast.smallest_limit,
                    isolated=True, max_workers=4)  # fmt: skip
    assert found.marsched.fits
    below = int(forecast.smallest_limit * 0.5)
    found = explain(anomaly(), threads=2, memory_limit=below, **QUICK)
    assert not found.marsched.fits
    assert found.marsched.smallest_limit > below


def test_numbers_of_workers(explained):
    sizes = explained.choices
    assert [size.workers for size in sizes] == [1, 2, 4, 8, 16]
    assert explained.best.workers in [size.workers for size in sizes if size.fits]
    assert sizes[0].makespan > sizes[2].makespan
    assert sizes[0].peak_per_worker > sizes[2].peak_per_worker
    assert sizes[2].makespan == explained.marsched.makespan


def test_what_holds_the_memory_is_named(explained):
    group = explained.groups[0]
    assert (group.name, group.shape, group.dtype) == ("random", (800, 800), "float64")
    assert group.tasks == 64
    assert group.share > 0.9
    assert group.nbytes == pytest.approx(group.alive * 800 * 800 * 8)


def test_two_passes_are_advised_where_chunks_wait_for_a_reduction(explained):
    advice = next(a for a in explained.advice if a.rule == "held-for-reduction")
    assert "chunks of random are held until mean_agg-aggregate" in advice.reason
    assert "simulated as two passes" in advice.checked
    x = source(rows=16, columns=1)
    assert "held-for-reduction" not in rules(explain((x + 1).mean(axis=0), **QUICK))


def test_fewer_threads_are_not_advised_where_that_does_not_fit_either():
    x = source(rows=16)
    found = explain((x + 1).sum(), threads=4, memory_limit="16MiB", **QUICK)
    assert not found.marsched.fits
    assert "fewer-threads" not in rules(found)


def test_storing_is_advised_where_a_large_result_is_gathered():
    x = source(rows=8, columns=8, side=1000) + 1
    found = explain(x, memory_limit="1GiB", **QUICK)
    assert "gathered-result" in rules(found)
    kept = explain(x, memory_limit="1GiB", persist=True, **QUICK)
    assert "gathered-result" not in rules(kept)
    assert kept.tasks == found.tasks - 1
    assert kept.marsched.peak_with_tasks < found.marsched.peak_with_tasks
    assert "gathered-result" not in rules(explain(x.sum(), memory_limit="1GiB", **QUICK))


def test_smaller_chunks_are_advised_along_an_axis_that_is_cut_already():
    x = da.random.default_rng(0).random((6000, 9000), chunks=(1500, 9000))
    found = explain((x - x.mean(axis=0)).sum(), memory_limit="384MiB", **QUICK)
    advice = next(a for a in found.advice if a.rule == "too-large-chunks")
    assert "along axis 0 (1500 elements now)" in advice.change
    assert "too-large-chunks" not in rules(explain(anomaly(), memory_limit="16GiB", **QUICK))


def test_a_computation_that_cannot_run_is_explained():
    x = da.random.default_rng(0).random((8000, 4000), chunks=4000)
    found = explain((x + x[::-1]).mean(), memory_limit="200MiB", **QUICK)
    assert not found.marsched.fits
    assert "200.00 MiB" in found.marsched.error
    assert found.marsched.smallest_limit > GiB / 2
    assert "no, it cannot run" in str(found)


@pytest.mark.slow
def test_larger_chunks_are_advised_for_very_many_small_ones():
    # Joined, they are not that many.
    found = explain((source(20, 20, side=5) + 1).sum(), policy="default+off", **QUICK)
    assert "tiny-chunks" in rules(found)
    assert "tiny-chunks" not in rules(explain((source(20, 20, side=1500) + 1).sum(), **QUICK))


def test_rechunking_of_everything_is_named():
    x = da.random.default_rng(0).random((3200, 3200), chunks=(200, 3200))

    def turned(method):
        return x.rechunk((3200, 200), method=method).map_blocks(np.sort, axis=0).sum()

    (advice,) = [a for a in explain(turned("tasks"), **QUICK).advice if a.rule == "all-to-all"]
    assert "16 of 16 chunks of random" in advice.reason
    assert "like (3200, 200) in the first place" in advice.change
    assert "all-to-all" not in rules(explain(turned("p2p"), **QUICK))
    assert "all-to-all" not in rules(explain(source(rows=16).rechunk((400, 200)).sum(), **QUICK))


def test_data_in_the_graph_are_named():
    x = da.from_array(np.zeros(9 * 2**20), chunks=2**20)
    assert "data-in-graph" in rules(explain(x.sum(), **QUICK))
    assert "data-in-graph" not in rules(explain(x[: 2**20].sum(), **QUICK))


def test_one_long_task_is_named():
    x = da.random.default_rng(0).random((4000, 4000), chunks=1000)
    long = x.rechunk((4000, 4000)).map_blocks(np.sort)[::100, ::100]
    assert "one-long-task" in rules(explain(long.sum(), **(QUICK | {"workers": 8})))
    assert "one-long-task" not in rules(explain(x.sum(), **(QUICK | {"workers": 8})))


def test_guessed_sizes_are_counted_and_told():
    parts = [dask.delayed(bytes)(1000 + i) for i in range(10)]
    found = explain([dask.delayed(len)(part) for part in parts], **QUICK)
    assert found.share_guessed == 1.0
    assert found.to_dict()["share_guessed"] == 1.0
    assert "100% guessed. A guessed size is" in str(found)
    assert "guessed-sizes" in rules(found)
    assert "will it fit?" in str(found)
    assert "unknown" in str(found)


def test_other_collections():
    xr, dd = pytest.importorskip("xarray"), pytest.importorskip("dask.dataframe")
    data = xr.Dataset({"t": (("x", "y"), source()), "n": ("x", np.arange(1600))})
    assert explain(data.mean("x"), **QUICK).tasks > 32
    assert explain(data.t, persist=True, **QUICK).title == "DataArray 1600 x 800 float64"
    frame = dd.from_dict({"k": list(range(100)), "v": list(range(100))}, npartitions=5)
    for persist in (False, True):
        found = explain([frame.groupby("k").v.sum(), frame.v.sum()],
                        persist=persist, **QUICK)  # fmt: skip
        assert found.title.startswith("Series, ")


def test_recorded_costs_are_used():
    parts = [dask.delayed(bytes)(10**6 + i) for i in range(10)]
    total = dask.delayed(len)(dask.delayed(b"".join)(parts))
    found = explain(total, costs=record_costs(total), **QUICK)
    assert found.share_guessed == 0
    assert found.sizes["recorded"] == found.tasks
    assert found.marsched.peak_memory > 10**7


def test_the_client_tells_the_size_of_its_cluster():
    with (
        # Far above what the process of the tests, which is theirs, ever holds.
        local_cluster(
            n_workers=3, threads_per_worker=2, memory_limit="6GiB", processes=False
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        found = explain(source().sum(), client=client, isolated=False, max_workers=3)
        asked = explain(source().sum(), client=client, workers=5, isolated=False, max_workers=5)
        ran = client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks))
    assert ran == 0
    assert (found.cluster["workers"], found.cluster["threads"]) == (3, 2)
    assert found.cluster["memory_limit"] == 6 * GiB
    assert cluster.scheduler_address in str(found)
    assert (asked.cluster["workers"], asked.cluster["threads"]) == (5, 2)


def test_the_page_is_one_page(explained):
    lines = str(explained).splitlines()
    assert len(lines) <= 60
    assert max(map(len, lines)) <= 100
    assert not any(line != line.rstrip() for line in lines)
    page = explained._repr_html_()
    # the last two are of what is joined, and of what kernels fuse
    assert page.count("<table ") == page.count("</table>") == 5
    assert "script" not in page
    found = explain(source().map_blocks(np.copy, name="<b>").sum(), **QUICK)
    assert "<b>" not in found._repr_html_()


def test_the_numbers_are_ready_for_json(explained):
    found = json.loads(json.dumps(explained.to_dict()))
    assert found["stock"]["makespan"] == explained.stock.makespan
    assert found["groups"][0]["shape"] == [800, 800]
    assert found["choices"][0]["worker_seconds"] == explained.choices[0].worker_seconds
    assert found["advice"][0]["rule"] == explained.advice[0].rule


def test_what_there_is_no_time_for_is_named():
    found = explain(anomaly(side=200), time_limit=0, **QUICK)
    assert [size.workers for size in found.choices] == [2]
    assert not found.marsched.verified
    assert "smallest limit of default" in found.skipped
    assert "1 worker" in found.skipped
    assert "Skipped for lack of time: smallest limit of default" in str(found)
    assert "(computed)" in str(found)


def test_nothing_is_executed(tmp_path):
    marker = tmp_path / "executed"
    touch = dask.delayed(marker.touch)
    explain([touch(), source().map_blocks(fail, dtype="f8").sum()], **QUICK)
    assert not marker.exists()


def fail(block):
    raise AssertionError("executed")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"workers": 0}, "workers must be 1 or more, not 0"),
        ({"threads": -1}, "threads must be 1 or more, not -1"),
        ({"memory_limit": "many"}, "memory_limit"),
        ({"max_workers": 0}, "max_workers must be 1 or more, not 0"),
        ({"budget": "much"}, "budget must be seconds or a text like"),
        ({"deadline": -1}, "deadline must be more than 0, not -1"),
        ({"budget": 1, "deadline": 1}, "budget or deadline, not both"),
        ({"time_limit": "soon"}, "time_limit must be seconds"),
        ({"policy": "best"}, "best"),
    ],
)
def test_bad_input_is_one_clear_error(arguments, message):
    with pytest.raises(ValueError, match=message):
        explain(source().sum(), isolated=False, **arguments)


@pytest.mark.parametrize("collection", [1, [1], [[]], "x"])
def test_what_is_no_collection(collection):
    with pytest.raises(TypeError, match="not a Dask collection"):
        explain(collection, isolated=False)


def test_an_empty_list():
    with pytest.raises(ValueError, match="empty"):
        explain([], isolated=False)


def test_what_is_no_client():
    with pytest.raises(TypeError, match=r"client must be a distributed\.Client, not str"):
        explain(source().sum(), client="tcp://scheduler:8786")


@pytest.mark.extended
def test_it_is_public():
    code = (
        "import dask_marsched, sys; assert 'dask_marsched.simulation' not in sys.modules; "
        "dask_marsched.explain"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_what_is_fused_is_named(explained):
    texts = {one.text: one.tasks for one in explained.fused}
    # of each of 64 chunks the distance from the mean is squared and added up
    assert texts["sum((a - b)**2, axis=(0,))"] == 64
    assert "sum((a - b)**2, axis=(0,))" in str(explained)
    assert json.dumps(explained.to_dict()["fused"])


@pytest.mark.extended
def test_what_workers_have_chosen_is_told():
    settings = {"marsched.fusion.kernels": True, "marsched.fusion.cache": "off"}
    x = source(rows=1, columns=1, side=400)
    with (
        dask.config.set(settings),
        local_cluster(n_workers=1, threads_per_worker=1) as cluster,
        distributed.Client(cluster) as client,
    ):
        client.register_plugin(MarsSchedulerPlugin())
        distributed.wait(((x * 2 + 1) / x).persist())
        found = explain((x * 2 + 1) / x, client=client, isolated=False, max_workers=1)
    (one,) = found.fused
    assert one.backends == ("numpy",)  # nothing is compiled before NumPy has taken its time


def test_what_is_joined_is_named():
    collection = (source() + 1).mean()
    found = explain(collection, time_limit=0, **QUICK)
    assert found.joined
    assert any("mean_chunk" in what for what in found.joined)
    assert all(what in str(found) for what in found.joined)
    apart = explain(collection, policy="default+off", time_limit=0, **QUICK)
    assert not apart.joined
    assert "What becomes one task" not in str(apart)


@pytest.mark.parametrize(("part", "advised"), [(0.5, True), (0.9, False)])
def test_another_order_is_advised_only_if_it_was_simulated_to_need_less(part, advised):
    report = simulate(source().sum(), workers=2, isolated=False)

    class Simulated(AdviceContext):
        def what_if(self, name, **changes):
            assert changes["policy"].policies.ordering.name == "mars"
            return report, MemoryNeed(GiB, int(part * 4 * GiB))

    context = Simulated([], None, report, MemoryNeed(GiB, 4 * GiB), GiB, None)
    assert bool(list(other_order(context))) is advised
    roomy = dataclasses.replace(context, memory_limit=64 * GiB)
    assert not list(other_order(roomy))
    dfs = dataclasses.replace(report, policy="dfs")
    assert not list(other_order(dataclasses.replace(context, report=dfs)))


def test_the_pieces_of_a_shuffle_in_memory_are_a_group_without_chunks():
    with dask.config.set({"distributed.p2p.storage.disk": False}):
        rechunked = source().rechunk((1600, 100), method="p2p").sum()
        found = explain(rechunked, time_limit=0, **QUICK)
    pieces = next(group for group in found.groups if group.name == "p2p-pieces")
    assert (pieces.tasks, pieces.shape) == (0, None)
    assert "p2p-pieces" in str(found)


def test_both_passes_are_simulated_with_the_overhead_that_was_recorded():
    collections, overheads = [anomaly(side=200)], []
    report = simulate(collections, workers=2, isolated=False)

    class Simulated(AdviceContext):
        def what_if(self, name, **changes):
            overheads.append(changes["costs"].overhead)
            return report, MemoryNeed(0, 0)

    facts = GraphFacts(collections, Costs({}, overhead=5))
    context = Simulated(collections, facts, report, MemoryNeed(GiB, GiB), GiB, None)
    assert list(held_for_reduction(context))
    assert overheads == [5, 5]
