"""Kills of the scheduler: when they come, what is counted, what is told."""

import pytest

from benchmarks.restarts import cost, kills
from benchmarks.restarts.executions import Executions, FirstTasks
from benchmarks.restarts.processes import free_address
from benchmarks.restarts.programs import PROGRAMS, computed_again


def outcome(number=0, **fields):
    kill = kills.ScheduleOfKill(number, "anomaly", "computing", 0.5, 0.1)
    return kills.RestartOutcome(kill, **fields)


def test_the_schedule_is_that_of_the_seed_and_has_every_pair():
    planned = kills.schedule(40, seed=3)
    assert planned == kills.schedule(40, seed=3) != kills.schedule(40, seed=4)
    pairs = {(kill.program, kill.moment) for kill in planned}
    assert pairs == {(program, moment) for program in PROGRAMS for moment in kills.MOMENTS}
    assert all(0 <= kill.fraction < 1 for kill in planned)


def test_only_what_began_just_before_the_kill_may_run_again():
    assert outcome(right=True).passed
    assert outcome(right=True, again=3, oldest=0.04).passed
    assert not outcome(right=True, again=1, oldest=0.06).passed
    assert not outcome(right=False).passed
    assert not outcome(right=True, error="exceptions").passed


def test_runs_are_counted_by_task():
    runs = {("x", 0): [1.0, 2.0], ("x", 1): [1.0], ("rechunk-p2p-abc", 0): [1.0, 2.0]}
    assert computed_again(PROGRAMS["anomaly"], runs) == {
        ("x", 0): [1.0, 2.0],
        ("rechunk-p2p-abc", 0): [1.0, 2.0],
    }
    assert list(computed_again(PROGRAMS["P2P rechunk"], runs)) == [("x", 0)]


def test_the_plugins_note_what_runs():
    executions = Executions()
    for start, finish in (("ready", "executing"), ("executing", "memory"), ("memory", "released")):
        executions.transition("x", start, finish)
    executions.transition("x", "cancelled", "executing")  # it had begun before
    assert (len(executions.begun["x"]), len(executions.ended["x"])) == (1, 1)
    first = FirstTasks()
    first.transition("x", "waiting", "processing")
    sent = first.sent
    first.transition("x", "processing", "memory")
    first.transition("y", "waiting", "processing")
    assert first.made <= sent == first.sent <= first.finished
    assert first.tasks == 2


def test_an_address_is_no_connections():
    assert 20_000 <= int(free_address("127.0.0.1").rpartition(":")[2]) < 32_000
    with pytest.raises(OSError, match="no port is free at 192"):
        free_address("192.0.2.1")


def test_the_tables():
    table = kills.cells([outcome(right=True, back=0.5), outcome(1, hung=True, error="no answer")])
    assert table[1] == ["computing", "2", "1", "1", "0", "2", "0", "0", "0.50", "0.50"]
    assert [row[0] for row in table[1:]] == ["computing", "anomaly", "all"]
    runs = [
        cost.JournalRun("map", journal, 1.0 + journal, 2**20, 10, 500 * journal, "a")
        for journal in (False, True)
    ]
    first = [cost.FirstTask("map", journal, s) for journal in (False, True) for s in (0.1, 0.2, 9)]
    table = cost.cost_cells(runs, first)
    assert table[1][:5] == ["map", "10", "1.00", "2.00", "2.000"]
    assert table[1][-2:] == ["50", "yes"]
    assert table[1][5:8] == ["200.00", "200.00", "1.000"]
    assert table[2][4] == "2.000"
    assert {len(row) for row in table} == {13}
    assert cost.return_cells([cost.Return("map", 9, 1, 2, 3)])[1] == [
        "map",
        "9",
        "1.00",
        "2.00",
        "3.00",
    ]


@pytest.mark.slow
def test_a_scheduler_is_killed_in_the_middle(monkeypatch):
    told = []
    outcomes = kills.run(1, seed=1, workers=2, progress=told.append)
    assert told == outcomes
    assert outcomes[0].passed, outcomes[0]
