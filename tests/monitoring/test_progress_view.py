"""Lines and tables of `progress`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_marsched.monitoring import progress_view as view
from dask_marsched.monitoring.progress_feed import PHASES


def told(status="running", **fields):
    phases = dict.fromkeys(PHASES, 0) | fields.pop("phases", {})
    return {
        "status": status, "phases": phases, "kinds": [], "seconds": None, "at_least": False,
        "reason": "no operand of these kinds has run yet", "spilled": 0, "elapsed": 61.0,
        "error": None, **fields,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "less than 1 s"),
        (41.6, "42 s"),
        (59.7, "1 min 0 s"),
        (200, "3 min 20 s"),
        (7500, "2 h 5 min"),
        (3 * 86400 + 7200, "3 d 2 h"),
    ],
)
def test_durations(seconds, text):
    assert view.duration(seconds) == text


def test_line():
    phases = {"waiting": 1200, "ready": 40, "running": 8, "finished": 752, "failed": 0}
    text = view.line(told(phases=phases, seconds=130.0, spilled=3 * 2**30))
    assert text == (
        "[#######-            ]  37 % | about 2 min 10 s left"
        " | waiting 1,200, ready 40, running 8, finished 752 | 3.00 GiB on disk"
    )
    text = view.line(told(phases={"finished": 1, "failed": 1}))
    assert "failed 1" in text
    assert "time left unknown: no operand of these kinds has run yet" in text
    assert view.left_text(told(seconds=90.0, at_least=True)) == "about 1 min 30 s or more left"
    assert view.left_text(told(seconds=0.5, at_least=True)) == "time left unknown"
    assert view.left_text(told(seconds=0.5)) == "less than 1 s left"
    assert view.left_text(told("expected")) == "on the way to the scheduler"


def test_last_line():
    phases = {"finished": 7, "waiting": 3}
    assert view.last_line(told("cancelled", phases=phases)) == (
        "cancelled: 7 of 10 operands in 1 min 1 s"
    )
    error = ["('x', 0)", "ValueError('bad')"]
    text = view.last_line(told("error", phases=phases, error=error))
    assert text.endswith("in 1 min 1 s; ('x', 0): ValueError('bad')")
    assert view.is_ended(told("lost"))
    assert not view.is_ended(told("collected"))


COUNTS = st.fixed_dictionaries({phase: st.integers(0, 10**6) for phase in PHASES})


@given(COUNTS, st.integers(1, 80))
def test_the_bar_is_full_only_when_all_is_finished(phases, width):
    text = view.bar(phases, width)
    assert len(text) == width
    total = sum(phases.values())
    assert (text == "#" * width) == (total > 0 and phases["finished"] == total)
    if total:
        assert text.count("#") == width * phases["finished"] // total


@given(COUNTS, st.text())
def test_names_are_escaped(phases, name):
    kind = {"name": name + "<script>", "total": 1, "finished": 0, "running": 0, "failed": 0}
    found = told("error", phases=phases, kinds=[kind], error=["<b>", "<i>&"])
    text = view.to_html(found)
    assert "<script>" not in text
    assert "<b>: <i>" not in text
    assert "<table>" in text
    assert "<table>" not in view.to_html(found, by_kind=False)
