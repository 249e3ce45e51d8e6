"""`progress` of real computations."""

import asyncio
import io
import signal
import sys
import threading
import time
import types
from unittest import mock

import dask.array as da
import pytest
from distributed import Client, Event, wait
from distributed.core import rpc
from distributed.utils_test import async_poll_for, gen_cluster, inc

import dask_marsched
from dask_marsched.monitoring import progress_feed
from dask_marsched.monitoring.progress import Listener, ProgressView
from dask_marsched.monitoring.progress_feed import ProgressTracker
from tests.harness import check, planned_cluster


class Terminal(io.StringIO):
    def isatty(self):
        return True


def held(x, name):
    Event(name).wait()
    return x


def fail(x):
    raise ZeroDivisionError("<b>no</b>")


async def followed(c, s, *futures, **options):
    """Return the list to which everything is added that is told, and the task that does."""
    told = []
    before = set(s.plugins)
    listener = Listener(list(futures), options.pop("complete", True), 0.01)
    task = asyncio.ensure_future(listener.listen(told.append))
    await async_poll_for(lambda: task.done() or set(s.plugins) - before, 5)
    return told, task


@planned_cluster([("127.0.0.1", 1)] * 2)
async def test_phases_of_a_computation(c, s, *workers):
    x = da.ones((40, 40), chunks=10).map_blocks(held, "go", dtype=float)
    future = c.compute(x.sum())
    await async_poll_for(lambda: len(s.tasks) > 20, 5)
    told, task = await followed(c, s, future)
    await async_poll_for(lambda: told and told[-1]["phases"]["running"] == 2, 5)
    now = told[-1]
    assert now["status"] == "running"
    assert (now["seconds"], now["reason"]) == (None, "no operand of these kinds has run yet")
    assert sum(now["phases"].values()) == len(s.tasks)
    assert now["phases"]["waiting"] > 0 == now["phases"]["finished"]
    await Event("go").set()
    await task
    assert told[-1]["status"] == "finished"
    assert told[-1]["phases"]["finished"] == sum(told[-1]["phases"].values())
    assert {kind["finished"] - kind["total"] for kind in told[-1]["kinds"]} == {0}
    shares = [one["phases"]["finished"] for one in told]
    assert shares == sorted(shares)
    assert all(one["seconds"] is None or one["seconds"] >= 0 for one in told)
    await async_poll_for(lambda: not any("progress" in name for name in s.plugins), 5)
    assert await future == 1600


@planned_cluster([("127.0.0.1", 1)])
async def test_the_counts_are_those_of_the_tasks(c, s, a):
    """Followed from the start or looked up at any time: the same."""
    x = da.random.random((60, 60), chunks=10)
    y = c.persist((x + x.T).map_blocks(held, "a", dtype=float))
    keys = {future.key for future in y.dask.values()}
    await async_poll_for(lambda: keys <= set(s.tasks), 5)
    early = ProgressTracker(s, keys)
    s.add_plugin(early)
    early.look()
    await async_poll_for(lambda: early.look()["status"] == "running", 5)
    await Event("a").set()
    await wait(y)
    late = ProgressTracker(s, keys)
    s.add_plugin(late)
    late.look()
    await async_poll_for(lambda: late.look()["status"] == "finished", 5)
    assert early.look()["phases"] == late.look()["phases"]
    assert early.look()["kinds"] == late.look()["kinds"]
    early.stop()
    late.stop()
    late.stop()


@planned_cluster([("127.0.0.1", 1)])
async def test_durations_are_learned(c, s, a):
    await wait(c.map(inc, range(3), key="before"))
    futures = c.map(held, range(5), name="go")
    told, task = await followed(c, s, *futures)
    await async_poll_for(lambda: told, 5)
    await Event("go").set()
    await task
    future = c.submit(held, 9, name="never")  # of the same kind
    more, task = await followed(c, s, future)
    # The first word may come before the scheduler has the task.
    await async_poll_for(lambda: more and more[-1]["seconds"] is not None, 5)
    await Event("never").set()
    await task


@planned_cluster([("127.0.0.1", 1)])
async def test_it_ends_with_an_error_and_names_it(c, s, a):
    broken = c.submit(fail, 1, key=("broken", 0))
    reader = c.submit(inc, broken)
    never = c.submit(held, 1, "never")
    told, task = await followed(c, s, reader, never)
    await task
    assert told[-1]["status"] == "error"
    assert list(told[-1]["error"]) == ["('broken', 0)", "ZeroDivisionError('<b>no</b>')"]
    assert told[-1]["phases"]["failed"] >= 1
    told, task = await followed(c, s, reader)  # it has failed before
    await task
    assert told[-1]["status"] == "error"
    await Event("never").set()


@planned_cluster([("127.0.0.1", 1)])
async def test_it_ends_when_cancelled(c, s, a):
    future = c.submit(held, 1, "go")
    told, task = await followed(c, s, future)
    await async_poll_for(lambda: told and told[-1]["status"] == "running", 5)
    await c.cancel(future)
    await task
    assert told[-1]["status"] == "cancelled"
    told, task = await followed(c, s, future)  # it never comes
    await task
    assert told[-1]["status"] == "cancelled"
    await Event("go").set()


@pytest.mark.extended
@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_it_ends_with_the_scheduler_and_on_restart(c, s, a):
    told, task = await followed(c, s, c.submit(held, 1, "go"))
    await async_poll_for(lambda: told and told[-1]["status"] == "running", 5)
    (watch,) = (plugin for plugin in s.plugins.values() if isinstance(plugin, ProgressTracker))
    watch.restart(s)
    await task
    assert told[-1]["status"] == "cancelled"
    told, task = await followed(c, s, c.submit(held, 2, "go"))
    await async_poll_for(lambda: told and told[-1]["status"] == "running", 5)
    await Event("go").set()
    future = c.submit(held, 1, "never")
    told, task = await followed(c, s, future)
    await async_poll_for(lambda: told, 5)
    for comm in list(s._comms):
        if comm.peer_address not in {ws.address for ws in s.workers.values()}:
            comm.abort()
    await task
    assert told[-1]["status"] in ("lost", "cancelled")
    # The client may not have heard yet that its connections are closed.
    async with rpc(s.address) as scheduler:
        await scheduler.event_set(name="never")


@planned_cluster([("127.0.0.1", 1)] * 2)
async def test_lost_results_are_unfinished_again(c, s, *workers):
    futures = c.map(inc, range(20))
    last = c.submit(held, 1, "go")
    await wait(futures)
    told, task = await followed(c, s, *futures, last)
    await async_poll_for(lambda: told and told[-1]["phases"]["finished"] == 20, 5)
    (busy,) = (ws.address for ws in s.workers.values() if ws.processing)
    (idle,) = (w for w in workers if w.address != busy)
    await idle.close()
    await Event("go").set()
    await task
    assert told[-1]["status"] == "finished"
    assert told[-1]["phases"]["finished"] == 21


@planned_cluster([("127.0.0.1", 1)])
async def test_earlier_results_are_not_counted_without_complete(c, s, a):
    futures = c.map(inc, range(20))
    await wait(futures)
    total = c.submit(sum, futures)
    told, task = await followed(c, s, total, complete=False)
    await task
    assert sum(told[-1]["phases"].values()) == 1
    told, task = await followed(c, s, total)
    await task
    assert sum(told[-1]["phases"].values()) == 21


@planned_cluster(
    [("127.0.0.1", 1)], plugin=lambda: dask_marsched.MarsSchedulerPlugin(fusion="subgraphs")
)
async def test_fused_tasks_and_an_asynchronous_client(c, s, a):
    x = c.persist(da.ones((100, 100), chunks=10) + 1)
    out = io.StringIO()
    await dask_marsched.progress([x, [x]], notebook=False, file=out)
    assert out.getvalue().splitlines()[-1].startswith("finished: ")
    check(s)


# --- in a terminal ------------------------------------------------------------------------


def test_a_file_gets_lines_and_a_terminal_one(cluster, capsys):
    with Client(cluster) as client:  # a stock one, and no plugin
        futures = client.map(time.sleep, [0.01] * 30, pure=False)
        assert dask_marsched.progress(futures, interval="20ms") is None
        lines = capsys.readouterr().out.splitlines()
        assert lines[-1].startswith("finished: 30 of 30 operands in ")
        assert len(lines) <= 13
        assert all(line.startswith("[") for line in lines[:-1])
        terminal = Terminal()
        futures = client.map(time.sleep, [0.02] * 9, pure=False)
        dask_marsched.progress(futures, interval="20ms", file=terminal)
        assert terminal.getvalue().count("\n") == 1
        assert terminal.getvalue().endswith("\033[K\n")
        dask_marsched.progress(da.ones(3))
        assert capsys.readouterr().out.startswith("nothing is being computed")


@pytest.fixture
def interruptible():
    """Ctrl-C does what it does in a terminal, also where these tests run in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_leaves_the_computation_alone(cluster, interruptible):
    with Client(cluster) as client:
        future = client.submit(held, 3, "go")

        class Interrupting(Terminal):
            """Presses Ctrl-C when the first line is drawn."""

            def write(self, text):
                if not self.getvalue():
                    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
                return super().write(text)

        out = Interrupting()
        with pytest.raises(KeyboardInterrupt):
            dask_marsched.progress(future, file=out)
        Event("go", client=client).set()
        assert future.result() == 3
        assert "no longer watched; the computation goes on" in out.getvalue()


def test_a_scheduler_without_the_package(bare_scheduler):
    with Client(bare_scheduler) as client:
        future = client.submit(inc, 1)
        with pytest.raises(RuntimeError, match=r"must be installed there: run `pip install"):
            dask_marsched.progress(future)


# --- in a notebook ------------------------------------------------------------------------


class Display:
    """Stands in for IPython: what was displayed, and what replaced it."""

    def __init__(self, widgets):
        self.shown = []
        modules = {"IPython": types.ModuleType("IPython")}
        modules["IPython.display"] = types.SimpleNamespace(HTML=str, display=self._display)
        modules["ipywidgets"] = types.SimpleNamespace(HTML=self._widget) if widgets else None
        self.modules = modules

    def _display(self, text, display_id=False):
        if isinstance(text, str):
            self.shown.append(text)
        return types.SimpleNamespace(update=self.shown.append)

    def _widget(self, text):
        shown = self.shown
        shown.append(text)

        class Widget:
            value = property(fset=lambda self, new: shown.append(new))

        return Widget()


@pytest.mark.parametrize("widgets", [False, True], ids=["html", "ipywidgets"])
@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_a_notebook_view_does_not_block(c, s, a, widgets):
    display = Display(widgets)
    future = c.submit(held, 1, "go", key="<script>-1")
    with mock.patch.dict(sys.modules, display.modules):
        view = dask_marsched.progress(future, notebook=True, interval="10ms")
        assert isinstance(view, ProgressView)
        view._ipython_display_()
    await async_poll_for(lambda: "running 1" in view.html, 5)
    await Event("go").set()
    await async_poll_for(lambda: "finished: 1 of 1" in view.html, 5)
    assert display.shown[-1] == view.html == view._repr_html_()
    assert len(display.shown) > 2
    assert not any("<script>" in text for text in display.shown)
    with mock.patch.dict(sys.modules, display.modules):
        nothing = dask_marsched.progress(da.ones(3), notebook=True)
        nothing._ipython_display_()
    assert "nothing is being computed" in display.shown[-1]


@planned_cluster([("127.0.0.1", 1)])
async def test_a_result_that_is_cancelled_while_operands_are_collected(c, s, a):
    blocked = c.submit(held, 0, "go", pure=False)
    other = c.submit(held, 1, "go", pure=False)
    await async_poll_for(lambda: other.key in s.tasks, 5)
    with mock.patch.object(progress_feed, "_STEP", 1):
        tracker = ProgressTracker(s, [blocked.key, other.key])
        s.add_plugin(tracker)
        tracker.look()
        await asyncio.sleep(0)
        s.client_releases_keys([blocked.key], c.id)
        await async_poll_for(lambda: tracker.look()["status"] == "cancelled", 5)
    tracker.stop()
    await Event("go").set()
