"""Notebooks show the state of the plugin, and text from other processes is never markup."""

from dask_marsched.monitoring.cluster_status import Status
from dask_marsched.monitoring.status_text import MOST_WORKERS
from tests.monitoring.test_html import Reader
from tests.test_status import QUOTA, SHARED, STORE

WORKER = {
    "quota": QUOTA,
    "store": STORE,
    "shared": SHARED,
    "interrupts": None,
    "kernels": {
        "saved": 1.5,
        "fused": 7,
        "expressions": [
            {
                "text": "(x < y) * 2",
                "dtypes": "f8, f8",
                "backend": "llvm",
                "runs": 7,
                "saved": 1.5,
                "given_up": {"numexpr": "no such function"},
            }
        ],
        "missing": {},
        "exceptions": {},
    },
    "reasons": {"interrupts": "<not> here"},
}


def text_of(thing) -> str:
    return " ".join(Reader(thing._repr_html_()).text)


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
        "30, the sizes of 50% known beforehand",
        "limit 2.00 kiB, used 1.00 kiB, promised 0 B, queued 3 B, evictions 5, deferrals 6",
        "in memory 1.00 kiB, spilled 2.00 kiB, on disk 3 B",
        "received by handle 3 B, by TCP 4 B",
        "saved 1.5 s of processor time on 7 chunks | (x < y) * 2 of f8, f8: llvm, 7 chunks",
        "numexpr gave up (no such function)",
        "interrupts: <not> here",
        "not installed; off: quota",
        "not reached: <b>hung</b>",
        "exceptions decide 1",
        "ValueError: a < b",
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
