"""Metrics in the workers' heartbeats."""

import msgpack
from distributed.utils_test import async_poll_for, gen_cluster, inc

from dask_marsched.config import Settings
from dask_marsched.monitoring.status_text import worker_text
from dask_marsched.scheduler_plugin import MarsSchedulerPlugin
from dask_marsched.worker.heartbeat_metrics import METRIC, HeartbeatMetrics, figures

BIG = 10**15


def full_report():
    """Return a report with as much in it as there can be."""
    return {
        "quota": dict.fromkeys(
            ("limit", "used", "promised", "queued", "deferrals", "forced", "evictions"), BIG
        ),
        "store": dict.fromkeys(("memory", "spilled", "disk"), BIG),
        "shared": dict.fromkeys(
            ("published", "mapped", "by_handle", "bytes_by_handle", "by_comm", "bytes_by_comm"), BIG
        ),
        "interrupts": {"interrupted": BIG, "still_running": 3},
        "kernels": {
            "saved": 1e9 / 3,
            "runs": BIG,
            "fused": BIG,
            "compiled": 1e5 / 3,
            "expressions": [
                {
                    "text": "(a + b) * " * 99,
                    "dtypes": ", ".join(["float64"] * 30),
                    "backend": "numexpr",
                    "runs": BIG,
                    "saved": 1e9 / 7,
                    "compiled": 1 / 3,
                    "given_up": {"llvm": "because"},
                }
            ]
            * 20,
        },
        "reasons": {},
    }


def test_the_metrics_take_about_a_kilobyte_at_most():
    told = figures(full_report())
    assert len(msgpack.dumps(told)) <= 1100
    assert len(told["kernels"]["expressions"]) == 4
    assert told["kernels"]["expressions"][0][2:] == ["numexpr", BIG, round(1e9 / 7, 6), 0.333333, 1]


def test_parts_that_are_off_are_not_sent():
    assert figures({"quota": None, "kernels": None, "reasons": {"quota": "off"}}) == {}


class StandIn:
    def __init__(self):
        self.metrics = {"other": None}


def test_a_failing_report_is_counted_and_does_not_affect_the_heartbeat():
    worker, caught = StandIn(), []
    telling = HeartbeatMetrics(
        worker, lambda: 1 / 0, lambda where, error: caught.append((where, error))
    )
    telling.install()
    assert worker.metrics[METRIC](worker) == {}
    assert [where for where, _ in caught] == ["heartbeat"]
    telling.uninstall()
    telling.uninstall()
    assert list(worker.metrics) == ["other"]


def test_a_metric_of_another_registration_stays():
    worker = StandIn()
    first, second = (HeartbeatMetrics(worker, dict, lambda *_: None) for _ in range(2))
    first.install()
    second.install()
    first.uninstall()
    assert METRIC in worker.metrics


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_heartbeats_contain_the_metrics_until_the_plugin_is_removed(c, s, a, b):
    plugin = MarsSchedulerPlugin(settings=Settings(quota_enabled=True, kernels_enabled=True))
    await c.register_plugin(plugin)
    await c.submit(inc, 1)
    await a.heartbeat()
    told = s.workers[a.address].metrics[METRIC]
    assert told["quota"]["limit"] == int(a.memory_manager.memory_limit * 0.75)
    assert told["kernels"]["runs"] == 0
    assert "shared" not in told
    await c.unregister_scheduler_plugin("marsched")
    await async_poll_for(lambda: METRIC not in a.metrics, 5)
    await a.heartbeat()
    assert METRIC not in s.workers[a.address].metrics


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_failures_are_reported_where_nothing_is_shared(c, s, a):
    await c.register_plugin(MarsSchedulerPlugin(settings=Settings(store_shared=False)))
    plugin = a.plugins["marsched"]
    part = plugin._parts["interrupts"]
    part.report = lambda: 1 / 0
    await a.heartbeat()
    del part.report
    report = plugin.report()
    assert report["messages"]["exceptions"] == {"heartbeat": 1}
    assert "messages exceptions heartbeat 1" in worker_text(report)


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_nothing_is_sent_if_all_parts_are_off(c, s, a):
    off = Settings(quota_enabled=False, store_shared=False, interrupt=False, kernels_enabled=False)
    await c.register_plugin(MarsSchedulerPlugin(settings=off))
    await a.heartbeat()
    assert METRIC not in s.workers[a.address].metrics
