"""What event loops took, against what the twin takes it to be."""

import pytest

from dask_marsched.simulation.cluster.spec import cluster_spec
from dask_marsched.simulation.costs.recorded import LoopLoad, overhead_of

CLUSTER = {
    "workers": 2, "threads": 1, "memory_limit": 1, "bandwidth": 1, "latency": 0, "cores": 2,
    "seed": 0,
}  # fmt: skip


def test_a_cluster_as_measured_once_has_no_overhead():
    # 1,000 tasks of 1.3 ms, 200 ends of transfers of 1 ms, 2 x 1 GB at 2.5 GB/s, 3 % of 10 s
    usual = 1.3 + 0.2 + 0.8 + 2 * 0.3
    loops = [LoopLoad(usual / 2, 50, 500_000_000)] * 2
    assert overhead_of(loops, 1000, 10.0) == pytest.approx(1.0)
    slow = [LoopLoad(usual, 50, 500_000_000)] * 2
    assert overhead_of(slow, 1000, 10.0) == pytest.approx(2.0)


@pytest.mark.parametrize(("loops", "tasks"), [([], 0), ([LoopLoad(0.01, 0, 0)], 5), ([], 5000)])
def test_what_is_too_short_tells_nothing(loops, tasks):
    assert overhead_of(loops, tasks, 0.1) == 1.0


def test_it_slows_down_what_is_not_given():
    usual, slow = cluster_spec(None, **CLUSTER), cluster_spec(None, overhead=2, **CLUSTER)
    for name in ("task_overhead", "message_cost", "batch_cost", "transfer_cost", "idle_load"):
        assert getattr(slow, name) == pytest.approx(2 * getattr(usual, name))
    assert slow.copy_bandwidth == pytest.approx(usual.copy_bandwidth / 2)
    assert slow.disk_bandwidth == usual.disk_bandwidth
    given = cluster_spec(None, overhead=2, batch_cost="1ms", **CLUSTER)
    assert given.batch_cost == 0.001
    assert given.message_cost == slow.message_cost


@pytest.mark.parametrize("wrong", [0, -1])
def test_it_is_positive(wrong):
    with pytest.raises(ValueError, match="overhead must be more than 0"):
        cluster_spec(None, overhead=wrong, **CLUSTER)
    with pytest.raises(ValueError, match="overhead must be a number"):
        cluster_spec(None, overhead="fast", **CLUSTER)
