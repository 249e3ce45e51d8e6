"""Interrupting threads: the guard by itself, and on real workers."""

import asyncio
import itertools
import random
import subprocess
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor

import dask
import dask.array as da
import pytest
from distributed import Event, Reschedule, get_worker, wait
from distributed.utils_test import async_poll_for, gen_cluster, inc

from dask_marsched.config import Settings
from dask_marsched.host.worker.interrupts import ExecutionInterrupted, Guard, lost_interrupts
from dask_marsched.scheduler_plugin import MarsSchedulerPlugin
from tests.harness import planned_cluster

STARTED: dict[object, threading.Event] = {}


def spin(name):
    """Run in Python until interrupted, or for a minute."""
    end = time.monotonic() + 60
    STARTED[name].set()
    while time.monotonic() < end:
        pass


def assert_interrupted(guard, name):
    """Interrupt a call of a guard once it has started, and wait until it has ended."""
    STARTED[name] = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(guard, name)
        STARTED[name].wait()
        guard.interrupt()
        with pytest.raises(Reschedule):
            running.result(30)


# ---- The guard -------------------------------------------------------------------------------


def test_a_loop_is_interrupted():
    STARTED["x"] = threading.Event()
    guard = Guard(spin)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(guard, "x")
        STARTED["x"].wait()
        assert guard.interrupt()
        assert not guard.interrupt()
        with pytest.raises(Reschedule):
            running.result(10)
        assert pool.submit(inc, 1).result(10) == 2


TRACED = """
import sys, threading
from dask_marsched.host.worker.interrupts import Guard
begun = threading.Event()
def spin(_):
    begun.set()
    while True:
        pass
def swallow(_):
    try:
        spin(_)
    except BaseException:
        return 1
for compute in (spin, swallow):
    begun.clear()
    guard = Guard(compute)
    def run():
        try:
            guard(None)
        except Exception:
            pass
    thread = threading.Thread(target=run)
    thread.start()
    begun.wait()
    guard.interrupt()
    thread.join()
sys.settrace(lambda *_: None)
(lambda: None)()
"""


@pytest.mark.slow
def test_traced_functions_do_not_hang_afterwards():
    # It would as long as the interpreter looks for an exception that is not on its way any more.
    subprocess.run([sys.executable, "-c", TRACED], check=True, timeout=60)


def test_results_and_errors_pass():
    assert Guard(inc)(1) == 2
    with pytest.raises(ZeroDivisionError):
        Guard(lambda x: 1 / x)(0)


def test_after_the_end_nothing_is_sent():
    guard = Guard(inc)
    assert guard(1) == 2
    assert not guard.interrupt()
    assert not guard.sent


def test_interrupted_before_it_began():
    guard = Guard(lambda _: pytest.fail("it ran"))
    assert guard.interrupt()
    with pytest.raises(Reschedule):
        guard(1)


def test_errors_in_python_do_not_hide_it():
    def swallow(name):
        try:
            spin(name)
        except Exception:
            pytest.fail("it is no error")

    assert_interrupted(Guard(swallow), "y")


class Lingering:
    """Ends while Python runs for long."""

    def __init__(self, name):
        self.name = name

    def __del__(self):
        spin(self.name)


def test_sent_again_if_it_arrives_in_a_finalizer():
    # Python ignores it there.
    def compute(name):
        held = [Lingering(name)]
        held.clear()
        spin(name)

    before = sys.unraisablehook
    lost_interrupts.install()
    try:
        assert_interrupted(Guard(compute), "z")
    finally:
        lost_interrupts.uninstall()
    assert sys.unraisablehook == before


def test_it_waits_while_memory_is_released():
    held_back, go_on = threading.Event(), threading.Event()

    def compute(name):
        guard.hold_back()
        held_back.set()
        go_on.wait()
        guard.let_through()
        spin(name)

    STARTED["v"] = threading.Event()
    guard = Guard(compute)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(guard, "v")
        held_back.wait()
        guard.interrupt()
        assert not guard.sent
        go_on.set()
        with pytest.raises(Reschedule):
            running.result(30)
    assert guard.sent


def test_a_storm_leaves_the_threads_alive():
    """2,000 interrupts at any moment of very short tasks: none arrives outside of its guard."""
    rng = random.Random(0)
    ended: list[str] = []

    def short(data):
        begun, n = data
        begun.set()
        for _ in range(n):
            pass

    def work(guard, data):
        try:
            guard(data)
            ended.append("done")
        except Reschedule:
            ended.append("interrupted")

    with ThreadPoolExecutor(2) as pool:
        for _ in range(2000):
            guard, begun = Guard(short), threading.Event()
            running = pool.submit(work, guard, (begun, rng.randrange(1000)))
            if rng.random() < 0.9:
                begun.wait()
            guard.interrupt()
            running.result(10)
        assert len(ended) == 2000
        assert min(ended.count("done"), ended.count("interrupted")) > 20
        assert all(thread.is_alive() for thread in pool._threads)


# ---- Workers ---------------------------------------------------------------------------------

NAMES = map("spin-{}".format, itertools.count())


def interrupting() -> MarsSchedulerPlugin:
    return MarsSchedulerPlugin(settings=Settings(interrupt=True))


def started(name):
    STARTED[name] = threading.Event()
    return name


def submit(c, *args, **kwargs):
    """Submit what its user calls harmless to stop."""
    with dask.annotate(pure=True):
        return c.submit(*args, **kwargs)


@planned_cluster([("127.0.0.1", 2)], plugin=interrupting)
async def test_a_cancelled_task_stops(c, s, a):
    name = started(next(NAMES))
    future = submit(c, spin, name, key=name)
    after = c.submit(inc, future)
    await asyncio.to_thread(STARTED[name].wait)
    await c.cancel(future)
    await async_poll_for(lambda: not a.state.tasks, 5)
    assert a.state.executing_count == 0
    assert a.plugins["marsched"].report()["interrupts"] == {"interrupted": 1, "still_running": 0}
    assert after.cancelled() or after.status == "cancelled"
    assert await c.submit(inc, 1) == 2


@pytest.mark.extended
@planned_cluster([("127.0.0.1", 1)], plugin=interrupting)
async def test_submitted_again_right_after(c, s, a):
    """Also where the worker is told of the new one before the old one has ended."""
    for turn in range(30):
        name = started(f"again-{turn}")
        future = submit(c, spin, name, key="again")
        await asyncio.to_thread(STARTED[name].wait)
        await c.cancel(future)
        del future
        assert await c.submit(inc, turn, key="again") == turn + 1
        # Else the next one is answered with this result.
        await async_poll_for(lambda: not a.state.tasks, 5)
    assert a.state.executing_count == 0


@planned_cluster([("127.0.0.1", 1)], plugin=interrupting)
async def test_the_same_task_submitted_again_runs_again(c, s, a):
    def twice():
        worker = get_worker()
        worker.runs = getattr(worker, "runs", 0) + 1
        if worker.runs == 1:
            Event("begun").set()
            while True:
                pass
        return worker.runs

    future = submit(c, twice, key="twice")
    await Event("begun").wait()
    await c.cancel(future)
    del future
    assert await submit(c, twice, key="twice") == 2


LOCK = threading.Lock()


def locked(name, path):
    """Hold a lock for the time that it takes to write two halves of a file."""
    LOCK.acquire()
    path.write_text("begun")
    STARTED[name].set()
    while path.read_text() != "go on":
        pass
    path.write_text("done")
    LOCK.release()


@planned_cluster([("127.0.0.1", 1)], plugin=interrupting)
async def test_tasks_that_may_write_or_lock_run_to_their_end(c, s, a, tmp_path):
    path = tmp_path / "file"
    for how in ("submit", "delayed"):
        name = started(next(NAMES))
        task = dask.delayed(locked, pure=True)(name, path)
        future = c.submit(locked, name, path) if how == "submit" else c.compute(task)
        await asyncio.to_thread(STARTED[name].wait)
        await c.cancel(future)
        await async_poll_for(lambda: not s.tasks, 5)
        path.write_text("go on")
        await async_poll_for(lambda: not a.state.tasks, 5)
        assert path.read_text() == "done"
        assert not LOCK.locked()
    assert a.plugins["marsched"].report()["interrupts"]["interrupted"] == 0


class Demanding:
    """A callable object that knows which attributes it has."""

    def __getattr__(self, name):
        raise (AttributeError if name.startswith("__") else KeyError)(name)

    def __call__(self, name, path):
        return locked(name, path)


@planned_cluster([("127.0.0.1", 1)], plugin=interrupting)
async def test_a_function_whose_attributes_raise_does_no_harm(c, s, a, tmp_path):
    name, path = started(next(NAMES)), tmp_path / "file"
    future = c.submit(Demanding(), name, path)
    await asyncio.to_thread(STARTED[name].wait)
    await c.cancel(future)
    path.write_text("go on")
    await async_poll_for(lambda: not a.state.tasks, 5)
    assert a.address in s.workers


class Slow:
    """A number whose addition takes until it is interrupted."""

    def __init__(self, name):
        self.name = name

    def __add__(self, other):
        spin(self.name)


@planned_cluster([("127.0.0.1", 1)], plugin=interrupting)
async def test_pure_tasks_are_interrupted(c, s, a):
    name = started(next(NAMES))
    future = c.compute(da.from_delayed(dask.delayed(Slow(name)), (), dtype=object) + 1)
    await asyncio.to_thread(STARTED[name].wait)
    await c.cancel(future)
    await async_poll_for(lambda: not a.state.tasks, 5)
    assert a.plugins["marsched"].report()["interrupts"]["interrupted"] == 1


@planned_cluster([("127.0.0.1", 1)], plugin=interrupting)
async def test_coroutines_and_wanted_tasks_are_left_alone(c, s, a):
    async def patient():
        await asyncio.sleep(0.05)  # workload
        return 1

    assert await c.submit(patient) == 1
    futures = c.map(inc, range(50))
    assert await c.gather(futures) == list(range(1, 51))
    assert a.plugins["marsched"].report()["interrupts"]["interrupted"] == 0


@planned_cluster([("127.0.0.1", 1)], plugin=interrupting)
async def test_tracebacks_begin_with_the_task(c, s, a):
    def fails():
        raise ZeroDivisionError

    future = c.submit(fails)
    await wait(future)
    frames = traceback.extract_tb(await future.traceback())
    assert [frame.name for frame in frames] == ["fails"]


@pytest.mark.extended
@planned_cluster([("127.0.0.1", 2)] * 2, plugin=interrupting)
async def test_a_storm_of_cancels_leaves_the_workers_healthy(c, s, *workers):
    rng = random.Random(1)

    def some(seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pass

    for _ in range(10):
        futures = [submit(c, some, rng.random() / 100, pure=False) for _ in range(20)]
        await wait(futures[:1])
        await c.cancel(futures)
    await async_poll_for(lambda: not any(w.state.executing_count for w in workers), 10)
    assert await c.gather(c.map(inc, range(20))) == list(range(1, 21))
    assert all(len(w.executors["default"]._threads) <= 2 for w in workers)


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_removing_the_plugin_restores_the_worker(c, s, a):
    stock = a.stream_handlers["free-keys"]
    await c.register_plugin(interrupting())
    assert a.stream_handlers["free-keys"] is not stock
    await c.unregister_scheduler_plugin("marsched")
    # The worker forgets the plugin before it has been taken down.
    await async_poll_for(lambda: a.stream_handlers["free-keys"] is stock, 20)
    assert "marsched" not in a.plugins
    assert "execute" not in vars(a)
    assert issubclass(ExecutionInterrupted, BaseException)
    assert not issubclass(ExecutionInterrupted, Exception)
