"""Collections that build on results which a cluster holds already."""

from __future__ import annotations

import dask.array as da
import pytest
from dask import delayed
from distributed import Client, wait

from dask_marsched import explain, simulate
from dask_marsched.simulation.costs.held_results import distribute, find_held_results
from tests.processes import local_cluster

POLICIES = ["stock", "default"]


@pytest.fixture(scope="module")
def client():
    with local_cluster(n_workers=2, processes=False) as cluster, Client(cluster) as client:
        yield client


@pytest.fixture(scope="module")
def persisted(client):
    x = da.arange(1600, chunks=100).persist()
    wait(x)
    return x


def test_sizes_and_places_come_from_the_scheduler(client, persisted):
    nbytes, places = find_held_results([(persisted + 1).sum()])
    assert set(nbytes.values()) == {800}
    addresses = sorted(client.scheduler_info()["workers"])
    for key, holders in client.who_has(persisted).items():
        assert places[key] == tuple(sorted(map(addresses.index, holders)))


@pytest.mark.extended
@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_held_is_there_and_stays(persisted, policy):
    report = simulate((persisted + 1).sum(), workers=2, policy=policy, validate=True)
    assert report.cost_sources["sizes"]["held"] == 16
    assert not report.not_simulated
    assert report.timeline.tasks.rows.shape[0] == report.tasks
    held = [group for group in report.peak_groups(5) if group.group == "arange"]
    assert held[0].count >= 16


@pytest.mark.extended
def test_a_future_among_the_arguments(client):
    report = simulate(delayed(sum)([client.submit(abs, -1), 2]), workers=2)
    assert report.tasks == 1


@pytest.mark.extended
def test_a_result_that_is_wanted_and_there_takes_no_time(persisted):
    report = simulate(persisted[:100], workers=2)
    assert report.peak_memory >= 800


@pytest.mark.extended
def test_explained(client, persisted):
    page = explain((persisted * 2).mean(), client=client, time_limit=0)
    assert "held" in str(page)
    assert sum(page.sizes.values()) == page.tasks + 16


@pytest.mark.slow
def test_without_a_client_sizes_are_those_of_the_graph():
    with (
        local_cluster(n_workers=1, processes=False) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        x = client.persist(da.ones((40, 40), chunks=10))
        y = (x + 1).sum()
    report = simulate(y, workers=4, validate=True, policy="stock")
    assert report.cost_sources["sizes"]["known"] == report.tasks + 16
    assert any("no client is connected" in what for what in report.not_simulated)
    killed = simulate(y, workers=4, policy="stock", faults=[(0.001, "join", 4)])
    assert killed.not_simulated == report.not_simulated


@pytest.mark.extended
def test_a_key_that_is_no_future_is_still_missing():
    from dask._task_spec import Task, TaskRef

    from dask_marsched.simulation.costs.persisted import PersistedGraph

    graph = PersistedGraph({"a": Task("a", abs, TaskRef("b"))}, ["a"], None)
    with pytest.raises(ValueError, match="does not contain 'b'"):
        simulate(graph)


def test_fewer_workers_than_the_cluster_has_hold_equal_parts():
    assert distribute("abcd", {"a": (0,), "b": (3,), "c": (1, 2), "d": (0,)}, 4)["c"] == (1, 2)
    assert distribute("abcd", dict.fromkeys("abcd", (3,)), 2) == {
        "a": (0,), "b": (0,), "c": (1,), "d": (1,)
    }  # fmt: skip
    assert distribute("ab", {"a": (0,), "b": ()}, 2) == {"a": (0,), "b": (1,)}
