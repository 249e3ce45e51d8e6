"""Where several workers share a host, what meets later is kept on one host."""

from typing import Any

import dask.array as da
import pytest

from dask_marsched.policies.unit_queues import UnitQueues
from dask_marsched.scheduler_plugin import MarsSchedulerPlugin
from dask_marsched.simulation import simulate


class Unaware(UnitQueues):
    """Units as they come, whatever the host."""

    def locate(self, host_of: Any) -> None:
        pass


def between_hosts(withholding: UnitQueues, hosts: int) -> int:
    u, v = (da.random.default_rng(s).random((240, 128, 128), chunks=(1, 128, 128)) for s in (1, 2))
    report = simulate(
        [(u * u).mean(axis=0), (u * v).mean(axis=0)],
        workers=8, hosts=hosts, timeline=False,
        policy=MarsSchedulerPlugin(withholding=withholding),
    )  # fmt: skip
    assert report.plugin["exceptions"] == {}
    return report.bytes_between_hosts


@pytest.mark.extended
def test_units_that_follow_each_other_run_on_one_host() -> None:
    assert between_hosts(UnitQueues(), 2) < 0.8 * between_hosts(Unaware(), 2)


@pytest.mark.slow
def test_nothing_changes_where_each_worker_has_a_host_of_its_own() -> None:
    assert between_hosts(UnitQueues(), 8) == between_hosts(Unaware(), 8)
