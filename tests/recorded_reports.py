"""Reports of small runs recorded with known numbers."""

from dask_marsched.simulation.cluster.recorder import Recorder

START = 1000.0
CLUSTER = {"workers": 2, "threads": 2, "memory_limit": 120, "seed": 7}
#: What the recorder is told for its report where it does not matter.
FACTS = {
    "policy": "stock",
    "plugin": {},
    "not_simulated": (),
    "peak_managed": 0,
    "cost_sources": {},
}


def tell(recorder):
    """Tell of two workers of which the first is killed after 4.5 s, and of a third that joins."""
    for worker in (0, 1):
        recorder.joined(worker)
    load, other, total = ("load-1", 0), ("load-1", 1), ("sum-2", 0)
    for key, worker, start, stop in (
        (load, 0, 0.0, 1.0),
        (other, 1, 0.5, 2.0),
        (total, 0, 0.25, 2.0),
        (load, 1, 5.0, 6.0),
    ):
        recorder.executed(key, worker, START + start, START + stop)
    for time, worker, key, change in (
        (1.0, 0, load, 60),
        (2.0, 1, other, 50),
        (2.0, 0, total, 30),
        (3.0, 1, load, 60),  # 200 bytes in all: the peak
        (4.0, 0, load, -60),
        (4.5, 0, total, -30),
        (6.0, 1, other, -50),
    ):
        recorder.memory_changed(START + time, worker, key, change)
    recorder.transferred((0, 1), True, 1, 60, START + 2.0, START + 3.0)
    recorder.transferred((0, 1), False, 2, 40, START + 2.5, START + 3.5)
    recorder.transferred((1, 0), True, 0, 0, START + 2.5, START + 3.5)  # nothing was there
    recorder.spilled(START + 4.0, 0, 60)
    recorder.spilled(START + 4.25, 0, -60)
    recorder.paused(1, START + 4.0, START + 4.5)
    recorder.fault(START + 4.5, "kill", 0)
    recorder.fault(START + 5.0, "join", 2)
    recorder.joined(2)


def small_report(*, timeline=True, **changes):
    """Return the report of that run, which took 8 seconds."""
    recorder = Recorder(START, timeline)
    tell(recorder)
    given = {
        **FACTS,
        "cluster": CLUSTER,
        "tasks": 3,
        "end": START + 8.0,
        "thread_seconds": 32.0,
        "not_simulated": ("actors <3>",),
    }
    return recorder.report(**(given | changes))


def wide_report(workers, tasks_each=3):
    """Return a report with many workers, all busy half of the time."""
    recorder = Recorder(START, True)
    for worker in range(workers):
        recorder.joined(worker)
    for turn in range(tasks_each):
        for worker in range(workers):
            key = ("load-1", worker, turn)
            recorder.executed(key, worker, START + 2 * turn, START + 2 * turn + 1)
            recorder.memory_changed(START + 2 * turn + 1, worker, key, 1 + worker)
    return recorder.report(
        cluster={"workers": workers, "threads": 1, "memory_limit": 6 * workers, "seed": 0},
        tasks=workers * tasks_each,
        end=START + 2 * tasks_each,
        thread_seconds=2.0 * tasks_each * workers,
        **FACTS,
    )
