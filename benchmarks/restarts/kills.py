"""Kills the scheduler at random moments of programs, starts it again, and checks what comes back.

The workers live on. Results are compared bit for bit with those of an undisturbed run, and each
worker tells which tasks it ran, so that what is computed again is counted.
"""

from __future__ import annotations

import os
import random
import shutil
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from distributed import Client as StockClient
from distributed import wait

from benchmarks.chaos import resource_watch
from benchmarks.restarts.executions import read_first_tasks
from benchmarks.restarts.programs import PROGRAMS, computed_again
from benchmarks.restarts.rig import PATIENCE, Rig
from dask_marsched import status
from dask_marsched.bench.metrics import digest

#: When the scheduler is killed.
MOMENTS = ("arriving", "computing", "gathering", "joining", "compacting")
#: The longest outage, seconds.
_OUTAGE = 1.0
#: Bytes of the journal's log from which on it is moved into the database, bytes of a task that
#: fills it, and the most of such tasks.
_LOG, _BALLAST, _MOST_TASKS = 4 << 20, 300_000, 100
#: What may be lost, seconds before the kill.
LOST = 0.05


@dataclass(frozen=True)
class ScheduleOfKill:
    """A program and the moment of the kill: one of `MOMENTS`, and how far into it, 0 to 1."""

    number: int
    program: str
    moment: str
    fraction: float
    outage: float


@dataclass(frozen=True)
class RestartOutcome:
    """What came of a kill.

    Attributes
    ----------
    kill
        The kill.
    right, hung
        Whether the results are those of the undisturbed run; whether there are none in time.
    again
        Tasks that were computed again.
    oldest
        Seconds before the kill at which the oldest of them had begun.
    example
        One of them, with the seconds from the kill to each of its beginnings.
    back
        Seconds from the start of the new scheduler's own code to the first task that finished;
        None if all had finished before.
    error
        What else went wrong, if anything.
    """

    kill: ScheduleOfKill
    right: bool = False
    hung: bool = False
    again: int = 0
    oldest: float = 0.0
    example: str = ""
    back: float | None = None
    error: str | None = None

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong; tasks may be computed again that began just before."""
        return self.right and self.error is None and self.oldest <= LOST


def schedule(count: int, seed: int) -> list[ScheduleOfKill]:
    """Return kills: programs and moments by turns, the rest drawn."""
    rng = random.Random(seed)
    pairs = [(program, moment) for program in PROGRAMS for moment in MOMENTS]
    rng.shuffle(pairs)
    return [
        ScheduleOfKill(n, *pairs[n % len(pairs)], rng.random(), rng.random() * _OUTAGE)
        for n in range(count)
    ]


class _Killer:
    """Kills the scheduler in its moment, and starts it again."""

    def __init__(self, rig: Rig, kill: ScheduleOfKill) -> None:
        self.rig = rig
        self.kill = kill
        self.timing = rig.undisturbed(kill.program)
        self.begun, self.computed = threading.Event(), threading.Event()
        self.killed = 0.0
        self.joining: Any = None
        self.ballast: list[Any] = []

    def run(self) -> None:
        """Wait for the moment; kill the scheduler; start it again."""
        if self.kill.moment == "joining":
            self.joining = self.rig.cluster.start_workers(1)
            before = self.rig.joining * (0.5 + self.kill.fraction * 0.6)
            time.sleep(max(before - self.timing.compute / 2, 0.0))
            self.begun.set()
            time.sleep(min(before, self.timing.compute / 2))
        else:
            self.begun.set()
            getattr(self, f"_wait_{self.kill.moment}")()
        self.killed = time.time()
        self.rig.cluster.kill_scheduler()
        time.sleep(self.kill.outage)
        self.rig.cluster.start_scheduler()

    def _wait_arriving(self) -> None:
        time.sleep(self.kill.fraction * self.timing.arrival)

    def _wait_computing(self) -> None:
        later = self.timing.compute - self.timing.arrival
        time.sleep(self.timing.arrival + self.kill.fraction * later)

    def _wait_gathering(self) -> None:
        self.computed.wait(PATIENCE)
        time.sleep(self.kill.fraction * self.timing.gather)

    def _wait_compacting(self) -> None:
        """Fill the journal's log, until it is moved into the database."""
        log = self.rig.cluster.journal / "journal.sqlite-wal"
        time.sleep(self.kill.fraction * self.timing.compute / 2)
        while log.stat().st_size <= _LOG and len(self.ballast) < _MOST_TASKS:
            text = os.urandom(_BALLAST // 2).hex()
            self.ballast.append(self.rig.client.submit(len, text))
        time.sleep(self.kill.fraction * 0.02)

    def finish(self) -> None:
        """Get the results of what filled the log; have the worker that joined leave."""
        found = self.rig.client.gather(self.ballast)
        if any(length != _BALLAST for length in found):
            raise AssertionError("the results of what filled the journal are wrong")
        self.ballast = []
        if self.joining is not None:
            self.joining = self.rig.have_joined(self.joining)


def _disturbed(rig: Rig, kill: ScheduleOfKill) -> RestartOutcome:
    program, client = PROGRAMS[kill.program], rig.client
    killer = _Killer(rig, kill)
    held = program.prepare(client)
    rig.calm_but(held)
    thread = threading.Thread(target=killer.run, name="killer", daemon=True)
    thread.start()
    killer.begun.wait(PATIENCE)
    futures = program.start(client, held)
    wait(futures, timeout=PATIENCE)
    killer.computed.set()
    results = client.gather(futures)
    thread.join(PATIENCE)
    killer.finish()
    again = computed_again(program, rig.executions())
    oldest = min(again, key=lambda key: again[key][0], default=None)
    made, _, finished, _ = client.run_on_scheduler(read_first_tasks)
    caught = status(client).exceptions
    del futures, held
    rig.calm()
    if killer.joining is not None:
        rig.let_go(killer.joining)
    rig.check_workers()
    return RestartOutcome(
        kill,
        right=digest(results) == killer.timing.digest,
        again=len(again),
        oldest=0.0 if oldest is None else killer.killed - again[oldest][0],
        example="" if oldest is None else _told(oldest, again[oldest], killer.killed),
        back=finished - made if finished else None,
        error=f"exceptions: {caught}" if caught else None,
    )


def _told(key: Any, begun: Sequence[float], killed: float) -> str:
    return f"{key} at {', '.join(f'{time - killed:+.3f} s' for time in begun)}"


def _in_time(rig: Rig, kill: ScheduleOfKill) -> RestartOutcome:
    """Run a program with a kill in a thread, which may hang for ever."""
    found: list[RestartOutcome] = []

    def work() -> None:
        try:
            found.append(_disturbed(rig, kill))
        except Exception as error:  # any error is a finding
            told = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            hung = isinstance(error, TimeoutError)
            found.append(RestartOutcome(kill, hung=hung, error=told))

    thread = threading.Thread(target=work, name="program", daemon=True)
    thread.start()
    thread.join(4 * PATIENCE)
    return found[0] if found else RestartOutcome(kill, hung=True, error="no answer")


def _save_state(rig: Rig) -> str:
    path = rig.directory / "state.txt"
    try:
        with StockClient(rig.cluster.address, timeout=10, set_as_default=False) as client:
            path.write_text(resource_watch.state(client))
    except Exception as error:
        path.write_text(repr(error))
    return str(path)


def run(
    count: int,
    *,
    seed: int = 0,
    workers: int = 4,
    only: Sequence[str] = (),
    progress: Callable[[RestartOutcome], None] = lambda _: None,
) -> list[RestartOutcome]:
    """Kill so often. A cluster on which something went wrong is left, and another one made.

    Its logs and its state are kept in the directory that `RestartOutcome.error` names.
    """
    kills = [k for k in schedule(count, seed) if not only or k.program in only or k.moment in only]
    outcomes: list[RestartOutcome] = []
    while len(outcomes) < len(kills):
        with Rig(workers) as rig:
            for kill in kills[len(outcomes) :]:
                outcome = _in_time(rig, kill)
                if not outcome.passed:
                    told = outcome.error or ("wrong" if not outcome.right else "too much again")
                    outcome = replace(outcome, error=f"{told}; see {_save_state(rig)}")
                outcomes.append(outcome)
                progress(outcome)
                if outcome.hung or not outcome.right:
                    break
        if all(outcome.passed for outcome in outcomes):
            shutil.rmtree(rig.directory, ignore_errors=True)
    return outcomes


def cells(outcomes: Sequence[RestartOutcome]) -> list[list[str]]:
    """Return the table by moment, by program and of all."""
    head = ["killed while", "kills", "right", "hung", "failed", "nothing again", "tasks again"]
    table = [[*head, "oldest, ms", "first task, s", "slowest, s"]]
    groups = {moment: [o for o in outcomes if o.kill.moment == moment] for moment in MOMENTS}
    groups |= {name: [o for o in outcomes if o.kill.program == name] for name in PROGRAMS}
    groups["all"] = list(outcomes)
    return table + [_row(name, found) for name, found in groups.items() if found]


def _row(name: str, outcomes: Sequence[RestartOutcome]) -> list[str]:
    back = [o.back for o in outcomes if o.back is not None]
    return [
        name,
        str(len(outcomes)),
        str(sum(o.right for o in outcomes)),
        str(sum(o.hung for o in outcomes)),
        str(sum(o.error is not None and not o.hung for o in outcomes)),
        str(sum(not o.again for o in outcomes)),
        str(sum(o.again for o in outcomes)),
        f"{1e3 * max((o.oldest for o in outcomes), default=0.0):.0f}",
        f"{statistics.median(back):.2f}" if back else "-",
        f"{max(back):.2f}" if back else "-",
    ]
