"""What notebooks show: everything that matters, nothing that breaks the page."""

from dask_marsched import MarsSchedulerPlugin
from dask_marsched.config import Settings
from dask_marsched.monitoring.notebook_views import MOST_WORKERS
from dask_marsched.status import Status
from tests.monitoring.test_html import Reader

WORKER = {
    "quota": {"used": 2**30, "promised": 2**20, "limit": 2**31, "deferrals": 3, "forced": 1},
    "store": {"memory": 2**20, "disk": 2**21},
    "shared": {"bytes_by_handle": 2**22, "bytes_by_comm": 0},
    "interrupts": None,
    "kernels": {
        "saved": 1.5,
        "fused": 7,
        "expressions": [{"text": "(x < y) * 2", "backend": "llvm"}],
    },
    "reasons": {"interrupts": "<not> here"},
}


def text_of(thing) -> str:
    return " ".join(Reader(thing._repr_html_()).text)


def test_a_plugin_tells_what_was_set():
    settings = Settings(quota_fraction=0.125, restart_patience="1m")
    plugin = MarsSchedulerPlugin(assignment="dfs", settings=settings)
    text = text_of(plugin)
    assert "not active: not started on a scheduler" in text
    assert "dfs" in text
    assert "marsched.quota.fraction 0.125  (default" in text
    assert "marsched.failover.patience 60.0  (default" in text
    assert "marsched.retries.infrastructure" not in text  # as it always is
    assert "is a copy" in text


def test_a_status_has_a_row_for_each_worker():
    status = Status(
        scheduler="tcp://1.2.3.4:8786",
        active=True,
        reason=None,
        policies={"assignment": "units"},
        graphs_planned=2,
        operands_planned=30,
        operands_placed=28,
        exact_sizes=0.5,
        workers={"tcp://a": WORKER},
        workers_lacking={"tcp://b": ("quota",)},
        unreachable={"tcp://c": "<b>hung</b>"},
        exceptions={"decide": 1},
        last_exception="ValueError: a < b",
        mismatches=("dask is 1 on tcp://a, 2 on the scheduler",),
    )
    read = Reader(status._repr_html_())
    text = " ".join(read.text)
    assert read.open == []
    assert "b" not in read.elements  # what a worker says is not markup
    for part in (
        "on tcp://1.2.3.4:8786: active",
        "30 planned in 2 graphs, 50% of known size; 28 placed",
        "1.00 GiB used, 1.00 MiB promised of 2.00 GiB; 3 deferred, 1 forced",
        "1.00 MiB in memory, 2.00 MiB on disk",
        "4.00 MiB by handle, 0 B by TCP",
        "1.5 s saved on 7 chunks; (x < y) * 2: llvm",
        "interrupts: <not> here",
        "not installed; off: quota",
        "not reached: <b>hung</b>",
        "decide 1; the last: ValueError: a < b",
        "dask is 1 on tcp://a, 2 on the scheduler",
    ):
        assert part in text


def test_a_status_without_a_plugin_says_why():
    text = text_of(Status("tcp://x", False, "not registered"))
    assert "not active" in text
    assert "not registered" in text


def test_of_many_workers_some_are_shown():
    workers = {f"tcp://{i}": WORKER for i in range(MOST_WORKERS + 5)}
    text = text_of(Status("tcp://x", True, None, workers=workers))
    assert f"tcp://{MOST_WORKERS - 1}" in text
    assert f"tcp://{MOST_WORKERS}" not in text
    assert "and 5 workers more" in text
