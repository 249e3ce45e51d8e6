"""What the worker's adapter relies on is there, and a worker that differs stays as it is."""

import pytest
from distributed.utils_test import gen_cluster

from dask_marsched.host.worker import contract


class Other:
    """A worker that differs from the one given."""

    def __init__(self, worker, **changes):
        self._worker = worker
        vars(self).update(changes)

    def __getattr__(self, name):
        return getattr(self._worker, name)


@gen_cluster(nthreads=[("127.0.0.1", 1)])
async def test_this_version_fits(s, a):
    assert contract.misfits(a) == []


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"execute": lambda key: None}, "worker.execute takes no 'stimulus_id'"),
        ({"get_data": None}, "worker.get_data is missing"),
        ({"monitor": None}, "worker.monitor.get_process_memory is missing"),
        ({"state": object()}, "worker.state has no attribute executing"),
        ({"state": Exception()}, "worker.state has a __dict__"),
    ],
)
@gen_cluster(nthreads=[("127.0.0.1", 1)])
async def test_each_difference_is_named(s, a, changes, text):
    found = contract.misfits(Other(a, **changes))
    assert text in found


def test_nothing_at_all_is_no_worker():
    found = contract.misfits(object())
    assert "worker.state has no attribute tasks" in found
    assert "worker.get_data is missing" in found
