"""Chaos runs inject faults, compare results, and notice failures."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.chaos import (
    chaos_run,
    computations,
    fault_injection,
    network_namespaces,
    resource_watch,
)

#: In a namespace: two hosts that reach each other, do not while the wire is cut, and do again.
WIRE = """
import socket, subprocess, sys
from benchmarks.chaos.network_namespaces import SCHEDULER_ADDRESS, two_hosts

def reaches(host, address):
    code = (
        "import socket, sys\\n"
        "s = socket.socket()\\n"
        "s.settimeout(0.5)\\n"
        f"sys.exit(s.connect_ex(({address!r}, 9)))"
    )
    # Nobody listens there: refused where packets arrive.
    return subprocess.run(host.command([sys.executable, "-c", code])).returncode == 111

with two_hosts() as (a, b):
    found = [reaches(a, b.address), reaches(b, a.address)]
    for host in (a, b):
        host.isolate(True)
    found += [reaches(a, b.address), reaches(b, a.address), reaches(a, SCHEDULER_ADDRESS)]
    for host in (a, b):
        host.isolate(False)
    print(*found, reaches(a, b.address), len({a.network, b.network}))
"""


@pytest.mark.extended
@pytest.mark.skipif(not network_namespaces.is_possible(), reason="no namespaces of networks here")
def test_the_wire_can_be_cut():
    assert not network_namespaces.is_inside()
    # What replaces a process is run in one of its own.
    enter = "import sys; from benchmarks.chaos.network_namespaces import enter; enter(sys.argv[1:])"
    command = [sys.executable, "-c", enter, sys.executable, "-c", WIRE]
    root = str(Path(__file__).parents[2])
    told = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": root}
    )
    assert told.stdout.split() == ["True", "True", "False", "False", "True", "True", "2"]


@pytest.mark.slow
def test_work_goes_on_in_chaos(tmp_path, monkeypatch):
    monkeypatch.setattr(fault_injection, "STOPS", (0.5,))
    told = []
    outcome = chaos_run.run(
        0.0, every=2.0, names=("persisted",), dumps=tmp_path, progress=told.append
    )
    assert outcome.kills >= 1
    assert outcome.computed == outcome.done["persisted"] == len(told) >= 1
    assert outcome.wrong == outcome.failed == outcome.hung == []
    assert outcome.exceptions == {}
    assert outcome.left == []
    assert outcome.totals["losses"] >= 1
    # Of the plugin alone, not of all that the scheduler has.
    assert 1e5 < outcome.samples[0].plugin < 1e8
    assert (tmp_path / "faults.log").read_text()
    assert [row[1] for row in chaos_run.cells(outcome)] == ["kills", str(outcome.kills)]


def sample(seconds, scheduler):
    return resource_watch.Sample(seconds, scheduler, 1, 1, 1, 4, 0, 0, 0)


def test_the_slope_is_that_of_the_second_half():
    grows_first = [sample(10.0 * i, 1000 * min(i, 30)) for i in range(60)]
    assert resource_watch.slope(grows_first) == pytest.approx(0, abs=1e-6)
    grows = [sample(10.0 * i, 1000 * i) for i in range(60)]
    assert resource_watch.slope(grows) == pytest.approx(360_000)
    assert resource_watch.slope(grows[:10]) is None


class _Client:
    run_on_scheduler = run = staticmethod(lambda *args, **kwargs: {})


@pytest.mark.parametrize(
    ("result", "kind"),
    [(1, "done"), (2, "wrong"), (OSError("lost"), "failed"), (TimeoutError(), "hung")],
)
def test_what_came_of_it_is_told(tmp_path, monkeypatch, result, kind):
    def work(client, variant):
        if client is None:
            return 1
        if isinstance(result, Exception):
            raise result
        return result

    monkeypatch.setitem(computations.WORK, "x", work)
    computations.expected.cache_clear()
    once = iter([True, False])
    outcome = chaos_run.Chaos()
    rng = chaos_run.random.Random(0)
    chaos_run._stream(
        outcome, _Client(), once.__next__, ("x",), rng, tmp_path, progress=lambda t: None, log=[]
    )
    assert bool(getattr(outcome, kind))
    assert outcome.passed == (kind == "done")
    assert (tmp_path / "hang-0.txt").exists() == (kind == "hung")


def test_an_exception_of_ours_or_a_missing_worker_is_no_success():
    assert chaos_run.Chaos().passed
    assert not chaos_run.Chaos(exceptions={"adopt": 1}).passed
    assert not chaos_run.Chaos(left=["3 results"]).passed
