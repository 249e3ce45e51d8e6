"""Dask's order is the same with counts of roots instead of sets."""

import dask.order
import pytest
from dask._task_spec import Task, TaskRef

from dask_marsched.host.graph import connected_roots, order_dependencies
from dask_marsched.host.replacements import Replacements
from tests.host.graph.test_order_dependencies import random_graph

STOCK = dask.order._connecting_to_roots


def test_dask_is_as_expected():
    assert connected_roots.misfits() == []


@pytest.fixture
def installed():
    with Replacements() as undo:
        order_dependencies.install(undo)
        connected_roots.install(undo)
        assert dask.order._connecting_to_roots is connected_roots.connecting_to_roots
        yield
    assert dask.order._connecting_to_roots is STOCK


@pytest.mark.parametrize("single_result", [True, False])
@pytest.mark.parametrize("seed", range(40))
def test_order_is_that_of_dask(seed, single_result, request):
    dsk = random_graph(seed)
    if single_result:
        read = {key for node in dsk.values() for key in node.dependencies}
        dsk[0] = Task(0, max, *(TaskRef(key) for key in dsk if key not in read))
    expected = dask.order.order(dsk)
    request.getfixturevalue("installed")
    assert dask.order.order(dsk) == expected


def test_the_counts_are_the_lengths_of_dasks_sets(installed):
    dsk = random_graph(7)
    dependencies = order_dependencies.Dependencies(dsk)
    dependents = dask.order.reverse_dict(dependencies)
    counts, most = connected_roots.connecting_to_roots(dependencies, dependents)
    sets, expected = STOCK(dependencies, dependents)
    assert {key: len(own) for key, own in counts.items()} == {
        k: len(own) for k, own in sets.items()
    }
    assert most == expected


def test_results_themselves_are_asked_for(installed):
    """The other direction: Dask looks for the results that a task is needed for."""
    dsk = random_graph(7)
    dependencies = order_dependencies.Dependencies(dsk)
    dependents = dask.order.reverse_dict(dependencies)
    found = connected_roots.connecting_to_roots(dependents, dependencies)
    assert found == STOCK(dependents, dependencies)


def test_many_roots_are_left_to_dask(installed, monkeypatch):
    monkeypatch.setattr(connected_roots, "_MOST_ROOTS", 1)
    dsk = random_graph(7)
    dependencies = order_dependencies.Dependencies(dsk)
    dependents = dask.order.reverse_dict(dependencies)
    found = connected_roots.connecting_to_roots(dependencies, dependents)
    assert found == STOCK(dependencies, dependents)


def test_a_version_that_uses_the_sets_themselves_is_left_alone(monkeypatch):
    def order(dsk):
        roots_connected = STOCK(dsk, {})[0]
        return sorted(roots_connected["a"])

    monkeypatch.setattr(dask.order, "order", order)
    assert connected_roots.misfits()
    with Replacements() as undo:
        connected_roots.install(undo)
        assert dask.order._connecting_to_roots is STOCK
