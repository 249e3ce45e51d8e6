"""The journal of a scheduler in this process: its faults, and what is changed where it is off."""

import asyncio
import contextlib
import dataclasses
import errno
import functools
import itertools
import logging
import operator
import pickle
import shutil
import socket
import threading
from types import SimpleNamespace

import dask.array as da
import distributed
import numpy as np
import pytest
from distributed import wait
from distributed.client import FutureState
from distributed.comm import CommClosedError
from distributed.metrics import time
from distributed.utils_test import async_poll_for

import dask_marsched
from dask_marsched import MarsSchedulerPlugin
from dask_marsched.host.client import reconnection
from dask_marsched.host.client.reconnection import SESSION, resumable
from dask_marsched.host.restart import process, restoration, returning_workers
from dask_marsched.host.restart.held_objects import HeldObjects
from dask_marsched.host.restart.recorder import Recorder
from dask_marsched.host.restart.returning_workers import ReturningWorkers
from dask_marsched.journal.places import open_journal
from dask_marsched.journal.sqlite_store import SQLiteStore
from dask_marsched.journal.store import JournalError, Record
from dask_marsched.scheduling.registration import Origin
from tests.processes import local_cluster

TABLES = ("graphs", "created", "wants", "sessions", "workers", "objects", "errors", "attempts")


@contextlib.contextmanager
def cluster_with(plugin, n_workers=1):
    with (
        local_cluster(n_workers=n_workers, processes=False) as cluster,
        dask_marsched.Client(cluster, scheduler_plugin=plugin) as client,
    ):
        yield cluster, client


def replaced(server) -> set[str]:
    """Return the names of methods that are replaced on an instance."""
    return {
        name
        for name, value in vars(server).items()
        if callable(getattr(type(server), name, None)) and callable(value)
    }


def handlers_of(scheduler):
    return {
        table: {
            op: getattr(handler, "__qualname__", "")
            for op, handler in getattr(scheduler, table).items()
        }
        for table in ("handlers", "stream_handlers")
    }


def test_nothing_is_changed_without_a_journal():
    with local_cluster(n_workers=1, processes=False) as cluster, dask_marsched.Client(cluster) as c:
        client_before = replaced(c)
        worker = next(iter(cluster.workers.values()))
        c.register_plugin(MarsSchedulerPlugin())
        assert c.submit(operator.add, 1, 2).result() == 3
        assert replaced(c) == client_before
        assert "close" not in vars(worker)
        s = cluster.scheduler
        handlers = [*s.handlers.values(), *s.stream_handlers.values()]
        assert not [h for h in handlers if h.__module__.startswith("dask_marsched.host.restart")]
        assert dask_marsched.status(c).details["journal"] is None
        assert "marsched-journal" not in s.identity()


def test_removal_restores_all_and_leaves_nothing(tmp_path):
    place = str(tmp_path / "journal")
    with local_cluster(n_workers=1, processes=False) as cluster, dask_marsched.Client(cluster) as c:
        s = cluster.scheduler
        worker = next(iter(cluster.workers.values()))
        c.register_plugin(MarsSchedulerPlugin())
        without, on_scheduler, on_client = handlers_of(s), replaced(s), replaced(c)
        calls = [dict(vars(server.scheduler)) for server in (c, worker)]
        c.unregister_scheduler_plugin("marsched")
        c.register_plugin(MarsSchedulerPlugin(journal=place))
        held = c.submit(operator.add, 1, 2)
        wait(held)
        c.sync(async_poll_for, lambda: "_reconnect" in vars(c), 30)
        assert handlers_of(s) != without
        assert replaced(c) > on_client
        assert "close" in vars(worker)
        assert "event_wait" in vars(c.scheduler)
        assert "event_wait" in vars(worker.scheduler)
        c.unregister_scheduler_plugin("marsched")
        c.register_plugin(MarsSchedulerPlugin())
        assert c.submit(operator.add, held, 1).result() == 4
        c.sync(async_poll_for, lambda: "_reconnect" not in vars(c), 30)
        assert handlers_of(s) == with_refusal(without)
        assert replaced(s) == on_scheduler
        assert replaced(c) == on_client
        assert "close" not in vars(worker)
        assert [vars(server.scheduler) for server in (c, worker)] == calls
    assert rows_in(place) == {}


def test_it_is_removed_in_the_moment_in_which_a_client_has_sent_its_last_message(tmp_path):
    place = str(tmp_path / "journal")
    with cluster_with(MarsSchedulerPlugin(journal=place)) as (cluster, client):
        wait_for_sessions(cluster, client)
        last = client.submit(operator.add, 1, 2)
        wait(last)
        client.run_on_scheduler(remove_after_release, last.key, client.id)
        client.register_plugin(MarsSchedulerPlugin(journal=place))
        assert dask_marsched.status(client).details["journal"]["reason"] is None


def wait_for_sessions(cluster, *clients):
    """Wait until the scheduler counts the messages of these clients."""
    ids, sessions = {client.id for client in clients}, recorder_of(cluster).sessions
    clients[0].sync(async_poll_for, lambda: ids <= sessions.keys(), 30)


def recorder_of(cluster):
    return cluster.scheduler.plugins["marsched"].restarts._parts.recorder


def remove_after_release(key, client, dask_scheduler):
    dask_scheduler.stream_handlers["client-releases-keys"](keys=[key], client=client)
    dask_scheduler.remove_plugin("marsched")


def test_a_part_that_fails_on_removal_leaves_no_other_in_force(tmp_path, monkeypatch, caplog):
    def fail(*args):
        raise OSError("in a test")

    place = str(tmp_path / "journal")
    with local_cluster(n_workers=1, processes=False) as cluster, dask_marsched.Client(cluster) as c:
        before = replaced(cluster.scheduler)
        c.register_plugin(MarsSchedulerPlugin(journal=place))
        monkeypatch.setattr(HeldObjects, "forget_all", fail)
        c.unregister_scheduler_plugin("marsched")
        assert replaced(cluster.scheduler) == before
        assert "OSError: in a test" in caplog.text
        open_journal(place).close()


def test_nothing_is_left_of_what_changed_just_before_the_end(tmp_path):
    place = str(tmp_path / "journal")
    with cluster_with(MarsSchedulerPlugin(journal=place)) as (cluster, client):
        wait_for_sessions(cluster, client)
        client.set_metadata("kept", 1)
        held = client.submit(operator.add, 1, 2)
        fails = client.submit(operator.truediv, 1, 0)
        wait([held, fails])
        assert client.run_on_scheduler(change_and_remove) is None
    assert rows_in(place) == {}


async def change_and_remove(dask_scheduler):
    item = {"name": "v", "data": 1, "key": None}
    await dask_scheduler.handlers["variable_set"](**item)
    dask_scheduler.remove_plugin("marsched")


def test_nothing_is_left_of_a_graph_that_was_not_read(tmp_path):
    place = str(tmp_path / "journal")
    with cluster_with(MarsSchedulerPlugin(journal=place)) as (cluster, client):
        wait_for_sessions(cluster, client)
        recorder = recorder_of(cluster)
        stock, unread = recorder._read, asyncio.Event()
        recorder._read = functools.partial(read_later, unread, stock)
        future = client.submit(operator.add, 1, 2)
        client.sync(async_poll_for, lambda: recorder.reading, 30)
        client.unregister_scheduler_plugin("marsched")
        client.loop.add_callback(unread.set)
        assert future.result(30) == 3
    assert rows_in(place) == {}


async def read_later(gate, read, **message):
    await gate.wait()
    await read(**message)


def test_metadata_that_a_restart_of_the_cluster_cleared_is_not_kept(tmp_path):
    place = str(tmp_path / "journal")
    with cluster_with(MarsSchedulerPlugin(journal=place), n_workers=0) as (cluster, client):
        objects = cluster.scheduler.plugins["marsched"].restarts._parts.objects
        client.set_metadata("x", 1)
        client.sync(async_poll_for, lambda: objects._written, 30)
        client.restart()
        client.sync(async_poll_for, lambda: not objects._written, 30)


def rows_in(place):
    store = open_journal(place)
    rows = {table: list(store.read(table)) for table in TABLES}
    store.close()
    return {table: found for table, found in rows.items() if found}


def with_refusal(handlers):
    """Add the answer to clients that begin a session when it is too late."""
    return {
        **handlers,
        "stream_handlers": {**handlers["stream_handlers"], SESSION: "Sessions._refuse"},
    }


def open_to_others(place):
    place.mkdir(mode=0o755)


def no_directory(place):
    place.write_text("a file")


def of_another_version(place):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dask_marsched.journal.versions.FORMAT", "0")
        open_journal(place).close()


def in_use(place):
    in_use.store = open_journal(place)


@pytest.mark.parametrize("fault", [open_to_others, no_directory, of_another_version, in_use])
def test_without_a_usable_directory_all_goes_on_and_status_says_so(
    tmp_path, fault, caplog, monkeypatch
):
    place = tmp_path / "journal"
    fault(place)
    waits = []

    def open_soon(place, patience):
        waits.append(patience)
        return open_journal(place, patience)

    monkeypatch.setattr("dask_marsched.host.restart.opening.open_journal", open_soon)
    with cluster_with(MarsSchedulerPlugin(journal=str(place))) as (_, client):
        assert client.submit(operator.add, 1, 2).result() == 3
        status = dask_marsched.status(client)
        assert status.active
        assert status.exceptions == {}
        assert max(waits) < 1  # the event loop of the scheduler waits
        reason = status.details["journal"]["reason"]
        assert "marsched.journal.directory" in reason
        assert f"NO JOURNAL IS KEPT: {reason}" in str(status)
        assert reason in "".join(
            r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR
        )
    if fault is in_use:
        in_use.store.close()


def test_a_client_does_not_erase_what_a_scheduler_left_that_is_down(tmp_path):
    place = str(tmp_path / "journal")
    left = Record("objects", "variable/'v'", b"state")
    leave(place, left)
    with cluster_with(MarsSchedulerPlugin(journal=place)) as (_, client):
        assert client.submit(operator.add, 1, 2).result() == 3
        reason = dask_marsched.status(client).details["journal"]["reason"]
        assert f"marsched.journal.directory: {place} holds the work of another" in reason
        assert rows_in(place) == {"objects": [left[1:]]}  # it is not locked


def scheduler_on(place):
    """Return a scheduler that starts with a journal."""
    plugins = [MarsSchedulerPlugin(journal=str(place))]
    return distributed.Scheduler(
        host="127.0.0.1", port=0, dashboard_address=":0", plugins=plugins, validate=True
    )


def leave(place, *records):
    """Leave these records to the next scheduler."""
    store = open_journal(place)
    store.write(records)
    store.close()


async def test_a_journal_that_cannot_be_restored_stays_as_it_is(tmp_path):
    found = Record("graphs", "000000000001", b"no graph")
    leave(tmp_path / "journal", found)
    async with scheduler_on(tmp_path / "journal") as s:
        restarts = s.plugins["marsched"].restarts
        assert "could not be restored" in restarts.reason
        assert "marsched.journal.directory" in restarts.reason
        assert rows_in(tmp_path / "journal") == {"graphs": [found[1:]]}  # it is not locked


async def test_an_object_that_cannot_be_restored_costs_no_other(tmp_path, caplog):
    variable = ("variable", "v", {"type": "msgpack", "value": 1})
    good = Record("objects", "variable/'v'", pickle.dumps(variable))
    leave(tmp_path / "journal", Record("objects", "variable/'w'", b"no pickle"), good)
    async with scheduler_on(tmp_path / "journal") as s:
        assert s.plugins["marsched"].restarts.reason is None
        assert s.extensions["variables"].variables == {"v": variable[2]}
        assert "The journal's variable/'w' cannot be restored" in caplog.text
    assert rows_in(tmp_path / "journal") == {}


async def journal_left_with(tmp_path, *keys):
    """Return a copy of the journal of a client's tasks that nobody computes, and the client."""
    place, left = tmp_path / "journal", tmp_path / "left"
    async with (
        scheduler_on(place) as s,
        dask_marsched.Client(s.address, asynchronous=True) as client,
    ):
        recorder = s.plugins["marsched"].restarts._parts.recorder
        await async_poll_for(lambda: client.id in recorder.sessions, 30)
        futures = [client.submit(operator.add, 1, 2, key=key) for key in keys]
        await async_poll_for(lambda: s.tasks.keys() == set(keys), 30)
        assert await asyncio.wrap_future(recorder.pass_on())
        shutil.copytree(place, left)
        del futures
    return left, client.id


async def test_a_client_that_loses_its_connection_on_its_return_is_not_forgotten(tmp_path):
    left, client = await journal_left_with(tmp_path, "x")
    async with scheduler_on(left) as s:
        recorder = s.plugins["marsched"].restarts._parts.recorder
        s.remove_client(client, stimulus_id="connection-lost")
        assert recorder.wanted.of(client) == ["x"]


async def test_a_graph_that_cannot_be_made_costs_no_other(tmp_path, monkeypatch, caplog):
    left, _ = await journal_left_with(tmp_path, "bad", "good")
    make = restoration._make

    def make_others(scheduler, graph, own):
        tasks = make(scheduler, graph, own)
        assert "bad" not in own
        return tasks

    monkeypatch.setattr(restoration, "_make", make_others)
    async with scheduler_on(left) as s:
        restarts = s.plugins["marsched"].restarts
        await restarts.ready.wait()
        assert restarts.reason is None
        assert set(s.tasks) == {"good"}
        assert "cannot be made" in caplog.text


@pytest.mark.parametrize("removed_meanwhile", [False, True])
async def test_a_scheduler_whose_journal_fails_is_not_started_again(
    tmp_path, monkeypatch, removed_meanwhile
):
    started = []
    monkeypatch.setattr(process, "why_not_again", lambda scheduler: None)
    monkeypatch.setattr(process, "start_again", lambda: started.append(1))
    monkeypatch.setattr(process, "ANSWERED", 0.0)
    async with scheduler_on(tmp_path / "journal") as s:
        restarts = s.plugins["marsched"].restarts
        assert await restarts.restart() is None
        if removed_meanwhile:
            s.remove_plugin("marsched")
        else:
            restarts._fail(JournalError("in a test"))
        await asyncio.wait([restarts._starting_again])
    assert not started


def test_a_full_disk_ends_the_journal_and_nothing_else(tmp_path, monkeypatch, caplog):
    with cluster_with(MarsSchedulerPlugin(journal=str(tmp_path / "journal"))) as (_, client):
        client.sync(async_poll_for, lambda: "_reconnect" in vars(client), 30)

        def full(*args):
            raise JournalError(f"cannot write: {errno.ENOSPC}")

        monkeypatch.setattr(SQLiteStore, "write", full)
        later = client.submit(operator.add, 3, 4)
        assert later.result() == 7
        client.sync(async_poll_for, lambda: "_reconnect" not in vars(client), 30)
        status = dask_marsched.status(client)
        assert status.exceptions == {}
        assert "NO JOURNAL IS KEPT: cannot write" in str(status)
        assert client.submit(operator.add, later, 1).result() == 8
    assert "cannot write" in caplog.text


def test_a_recorder_that_fails_is_counted_and_told(tmp_path, monkeypatch):
    def fail(*args):
        raise LookupError("in a test")

    with cluster_with(MarsSchedulerPlugin(journal=str(tmp_path / "journal"))) as (_, client):
        for name in ("graph_created", "moved"):
            monkeypatch.setattr(Recorder, name, fail)
        fails = client.submit(operator.truediv, 1, 0)
        with pytest.raises(ZeroDivisionError):
            fails.result(30)
        assert dask_marsched.status(client).exceptions.keys() == {"graph_created", "moved"}


def test_a_stock_client_that_registers_the_plugin_has_a_session(tmp_path):
    with local_cluster(n_workers=1, processes=False) as here, distributed.Client(here) as stock:
        assert "_reconnect" not in vars(stock)
        stock.register_plugin(MarsSchedulerPlugin(journal=str(tmp_path / "journal")))
        stock.sync(async_poll_for, lambda: "_reconnect" in vars(stock), 30)
        assert stock.submit(operator.add, 1, 2).result() == 3


def test_a_journal_is_kept_when_a_client_registers_the_plugin_as_well(tmp_path, caplog):
    place = str(tmp_path / "journal")
    with cluster_with(MarsSchedulerPlugin(journal=place)) as (cluster, client):
        held = client.submit(operator.add, 1, 2)
        wait(held)
        with dask_marsched.Client(cluster, scheduler_plugin=True) as second:
            second.sync(async_poll_for, lambda: "_reconnect" in vars(second), 30)
            assert "keeps a journal and stays" not in caplog.text
            second.register_plugin(MarsSchedulerPlugin(fusion="off"))
            assert "keeps a journal and stays" in caplog.text
            assert "marsched.fusion.graph: subgraphs -> off" in caplog.text
        status = dask_marsched.status(client)
        assert status.details["journal"]["reason"] is None
        assert status.details["journal"]["graphs"] == 1
        assert status.details["fusion"]["mode"] == "subgraphs"
        with pytest.warns(UserWarning, match="overwriting"):
            client.register_plugin(MarsSchedulerPlugin(fusion="off", journal=place))
        assert dask_marsched.status(client).details["fusion"]["mode"] == "off"


def test_all_clients_go_on_when_one_replaces_the_plugin(tmp_path):
    place = str(tmp_path / "journal")
    with (
        cluster_with(MarsSchedulerPlugin(journal=place)) as (cluster, client),
        dask_marsched.Client(cluster, set_as_default=False) as other,
    ):
        other.submit(operator.add, 1, 2).result(30)
        wait_for_sessions(cluster, client, other)
        replacing = MarsSchedulerPlugin(fusion="off", journal=place)
        # As if the other client were in another process.
        replacing.origin = dataclasses.replace(Origin.here("client"), clients=(client.id,))
        with pytest.warns(UserWarning, match="overwriting"):
            client.register_plugin(replacing)
        assert dask_marsched.status(client).details["fusion"]["mode"] == "off"
        wait_for_sessions(cluster, client, other)
        assert other.submit(operator.add, 2, 3).result(30) == 5


def test_a_worker_that_dies_before_its_registration_is_answered_is_removed(tmp_path):
    with cluster_with(MarsSchedulerPlugin(journal=str(tmp_path / "journal"))) as (_, client):
        there = set(client.scheduler_info()["workers"])
        assert client.run_on_scheduler(register_what_is_dead) == there
        assert dask_marsched.status(client).exceptions == {}


class Broken:
    """A connection to a process that has died."""

    async def write(self, message):
        raise CommClosedError


async def register_what_is_dead(dask_scheduler):
    (alive,) = dask_scheduler.workers.values()
    about = {"name": "dead", "nthreads": 1, "metrics": alive.metrics, "versions": alive.versions}
    about |= dict.fromkeys(("memory_limit", "local_directory", "nanny"))
    about |= {"resources": {}, "services": {}, "extra": {}}
    with pytest.raises(CommClosedError):
        await dask_scheduler.handlers["register-worker"](
            Broken(),
            address="tcp://127.0.0.1:1",
            status="running",
            server_id="dead",
            now=time(),
            stimulus_id="test",
            **about,
        )
    return set(dask_scheduler.workers)


async def test_a_clock_that_goes_back_does_not_hold_up_the_return(monkeypatch):
    """A worker that is alive and does not come back is waited for by a clock that only goes on."""
    back = itertools.count(1e9, -3600)
    monkeypatch.setattr(returning_workers, "time", lambda: next(back), raising=False)
    monkeypatch.setattr(returning_workers, "_LONGEST", 0.0)
    monkeypatch.setattr(returning_workers, "_CHECKED", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as alive:
        address = f"tcp://127.0.0.1:{alive.getsockname()[1]}"
        workers = ReturningWorkers(None, [address])
        await asyncio.wait_for(workers.all_back(), 30)
        assert workers.missing == {address}


async def test_workers_may_come_while_it_is_checked_whether_others_are_alive(monkeypatch):
    comes, died = "tcp://127.0.0.1:1", "tcp://127.0.0.1:2"
    workers = ReturningWorkers(None, [comes, died])

    async def comes_meanwhile(address):
        workers.arrived(comes)
        return False

    monkeypatch.setattr(returning_workers, "_CHECKED", 0.01)
    monkeypatch.setattr(returning_workers, "_listens", comes_meanwhile)
    await workers.all_back()
    assert workers.missing == set()


async def test_a_worker_may_announce_itself_while_its_registration_is_unanswered():
    stream = SimpleNamespace(please_stop=False, comm=None)
    scheduler = SimpleNamespace(coerce_address=str, stream_comms={"tcp://127.0.0.1:1": stream})
    workers = ReturningWorkers(scheduler, [])
    assert await workers._announce(address="tcp://127.0.0.1:1") == {"status": "registered"}


def test_a_task_starts_again_whose_input_is_lost_while_it_runs(tmp_path):
    with cluster_with(MarsSchedulerPlugin(journal=str(tmp_path / "journal"))) as (_, client):
        begun, gate = distributed.Event("begun"), distributed.Event("gate")
        runs = client.submit(begin_and_wait, 3)
        assert begun.wait(30)
        # As the scheduler decides for what reads a lost result.
        assert "released" in client.run_on_scheduler(states_on_the_way_to_waiting, runs.key)
        gate.set()
        assert runs.result(30) == 4


def begin_and_wait(x):
    distributed.Event("begun").set()
    assert distributed.Event("gate").wait(30)
    return x + 1


def states_on_the_way_to_waiting(key, dask_scheduler):
    dask_scheduler.transitions({key: "waiting"}, "test")
    return [e.finish for e in dask_scheduler.transition_log if e.key == key][-4:]


def test_a_worker_comes_back_that_lost_its_connection(tmp_path):
    with cluster_with(MarsSchedulerPlugin(journal=str(tmp_path / "journal"))) as (cluster, client):
        (worker,) = cluster.workers.values()
        held = client.submit(operator.add, 1, 2)
        wait(held)
        worker.loop.add_callback(worker.batched_stream.comm.abort)
        client.sync(async_poll_for, lambda: returned(worker) == 1, 30)
        assert client.submit(operator.add, held, 1).result(30) == 4
        assert dask_marsched.status(client).exceptions == {}


def test_a_worker_comes_back_before_the_scheduler_has_noticed(tmp_path):
    with cluster_with(MarsSchedulerPlugin(journal=str(tmp_path / "journal"))) as (cluster, client):
        (worker,) = cluster.workers.values()
        held = client.submit(operator.add, 1, 2)
        wait(held)
        reconnection = worker.plugins["marsched"]._parts["reconnection"]

        async def lose_connection():
            reconnection._waiting = asyncio.create_task(reconnection._come_back())

        worker.loop.add_callback(lose_connection)
        client.sync(async_poll_for, lambda: returned(worker) == 1, 30)
        assert client.submit(operator.add, held, 1).result(30) == 4
        assert dask_marsched.status(client).exceptions == {}


@pytest.mark.parametrize("first_back", ["worker", "key"])
def test_a_worker_that_comes_back_does_not_hold_what_a_key_meant_before(tmp_path, first_back):
    plugin = MarsSchedulerPlugin(journal=str(tmp_path / "journal"))
    with cluster_with(plugin, n_workers=2) as (cluster, client):
        first = client.submit(operator.add, 1, 1, key="again")
        wait(first)
        away = next(w for w in cluster.workers.values() if "again" in w.data)
        gate = hold_back(away)
        away.loop.add_callback(away.batched_stream.comm.abort)
        scheduler = cluster.scheduler
        client.sync(async_poll_for, lambda: away.address not in scheduler.workers, 30)
        del first
        client.sync(async_poll_for, lambda: "again" not in scheduler.tasks, 30)
        if first_back == "key":
            second = client.submit(operator.add, 10, 10, key="again")
            wait(second)
        gate.set()
        client.sync(async_poll_for, lambda: returned(away) == 1, 30)
        if first_back == "worker":
            second = client.submit(operator.add, 10, 10, key="again")
        reads = client.submit(operator.add, second, 1, workers=[away.address])
        assert reads.result(30) == 21
        assert dask_marsched.status(client).exceptions == {}


def test_a_shuffle_that_ended_while_a_worker_was_away_is_run_again_there(tmp_path):
    plugin = MarsSchedulerPlugin(journal=str(tmp_path / "journal"))
    with cluster_with(plugin, n_workers=2) as (cluster, client):
        away = list(cluster.workers.values())[1]
        adoption = cluster.scheduler.plugins["marsched"]._failover._adoption
        adoption._needs_an_adopter = lambda ws, dying: ws.address == away.address
        adoption._wait_for_adopters = lambda ws: asyncio.Event().wait()
        gate = hold_back(away)
        away.loop.add_callback(away.batched_stream.comm.abort)
        reconnection = away.plugins["marsched"]._parts["reconnection"]
        client.sync(async_poll_for, reconnection.is_away, 30)
        x = da.arange(400, chunks=20).reshape(20, 20)
        total = client.compute(x.rechunk((20, 1), method="p2p").sum(axis=0))
        runs = away.plugins["shuffle"].shuffle_runs
        client.sync(async_poll_for, lambda: any(r.transferred for r in runs._runs), 30)
        gate.set()
        expected = np.arange(400).reshape(20, 20).sum(axis=0)
        assert total.result(30).tolist() == expected.tolist()
        assert dask_marsched.status(client).exceptions == {}


def hold_back(worker):
    """Return an event that lets a worker come back."""
    gate = threading.Event()
    reconnection = worker.plugins["marsched"]._parts["reconnection"]
    announce = reconnection._announce

    async def announce_later():
        await async_poll_for(gate.is_set, 30)
        return await announce()

    reconnection._announce = announce_later
    return gate


def returned(worker):
    return worker.plugins["marsched"].report()["reconnection"]["returned"]


def test_a_client_that_lost_its_connection_begins_another_session(tmp_path):
    with cluster_with(MarsSchedulerPlugin(journal=str(tmp_path / "journal"))) as (_, client):
        client.sync(async_poll_for, lambda: "_reconnect" in vars(client), 30)
        lost = client.submit(operator.add, 1, 2)
        wait(lost)
        kept = resumable(client, 30.0)
        client.sync(async_poll_for, lambda: not kept._unwritten, 30)
        client.loop.add_callback(client.scheduler_comm.comm.abort)
        client.sync(async_poll_for, lambda: lost.cancelled(), 30)
        client.sync(async_poll_for, lambda: client.status == "running" and kept.active, 30)
        assert client.submit(operator.add, 2, 3).result(30) == 5
        assert dask_marsched.status(client).details["journal"]["clients"] == 1


def test_a_client_forgets_the_keys_that_its_restart_has_dropped(tmp_path, monkeypatch):
    monkeypatch.setattr(reconnection, "_FEW_KEYS", 0)
    plugin = MarsSchedulerPlugin(journal=str(tmp_path / "journal"))
    with cluster_with(plugin, n_workers=0) as (cluster, client):
        wait_for_sessions(cluster, client)
        kept = resumable(client, 30.0)
        dropped = client.map(operator.neg, range(10))
        client.sync(async_poll_for, lambda: len(kept._sent) == 10, 30)
        client.restart()
        client.sync(async_poll_for, lambda: all(f.cancelled() for f in dropped), 30)
        again = client.submit(operator.add, 1, 2)
        client.sync(async_poll_for, lambda: kept._sent == {again.key}, 30)


def test_a_call_whose_connection_breaks_fails_while_the_scheduler_lives(tmp_path):
    with cluster_with(MarsSchedulerPlugin(journal=str(tmp_path / "journal"))) as (cluster, client):
        events = cluster.scheduler.extensions["events"]
        client.sync(async_poll_for, lambda: "_reconnect" in vars(client), 30)

        async def lose_connection():
            waits = asyncio.ensure_future(client.scheduler.event_wait(name="never"))
            await async_poll_for(lambda: events._waiter_count["never"], 30)
            for comm in set().union(*client.rpc.occupied.values()):
                comm.abort()
            with pytest.raises(CommClosedError):
                await waits

        client.sync(lose_connection)
        assert client.submit(operator.add, 1, 2).result(30) == 3


def test_a_graph_that_is_being_sent_survives_the_beginning_of_a_session(tmp_path):
    with (
        cluster_with(MarsSchedulerPlugin(journal=str(tmp_path / "journal"))) as (cluster, _),
        distributed.Client(cluster, set_as_default=False) as stock,
    ):
        state = stock.futures["unsent"] = FutureState("unsent")
        dask_marsched.resume(stock)
        assert stock.submit(operator.add, 1, 2).result(30) == 3
        assert state.status == "pending"
        del stock.futures["unsent"]


def test_the_journal_does_not_grow_with_what_reads_a_living_result(tmp_path):
    with cluster_with(MarsSchedulerPlugin(journal=str(tmp_path / "journal"))) as (cluster, client):
        held = client.submit(operator.add, 1, 2)
        for i in range(20):
            assert client.submit(operator.add, held, i).result(30) == 3 + i
        again = client.submit(operator.add, 1, 2)  # the same key
        assert again.key == held.key
        recorder = recorder_of(cluster)
        client.sync(async_poll_for, lambda: len(recorder._alive) <= 2, 30)
        del held
        assert again.result(30) == 3


def test_the_journal_does_not_grow_with_a_key_that_is_computed_again(tmp_path):
    with cluster_with(MarsSchedulerPlugin(journal=str(tmp_path / "journal"))) as (cluster, client):
        recorder = recorder_of(cluster)
        for i in range(5):
            assert client.submit(operator.add, 1, i, key="again").result(30) == 1 + i
            client.sync(async_poll_for, lambda: "again" not in cluster.scheduler.tasks, 30)
        last = client.submit(operator.add, 1, 5, key="again")
        assert last.result(30) == 6
        client.sync(async_poll_for, lambda: len(recorder._alive) == 1, 30)


async def test_results_of_graphs_that_are_still_unread_stay_valid_if_it_dies_again():
    ready, written = asyncio.Event(), []
    journal = SimpleNamespace(put=lambda *row: written.append(row[:2]), flush=lambda: None)
    recorder = Recorder(SimpleNamespace(tasks={}), journal, pytest.fail, ready)
    recorder.pass_on()
    assert ("facts", "last_run") not in written
    ready.set()
    recorder.pass_on()
    assert ("facts", "last_run") in written


def test_a_session_counts_no_message_that_was_handed_to_the_loop_before(tmp_path):
    with (
        cluster_with(MarsSchedulerPlugin(journal=str(tmp_path / "journal"))) as (cluster, _),
        distributed.Client(cluster, set_as_default=False) as stock,
    ):
        kept = resumable(stock, 30.0)
        held = stock.submit(operator.add, 1, 2)
        wait(held)

        async def begin_between():
            before = functools.partial(
                stock._send_to_scheduler_safe,
                {"op": "client-desires-keys", "keys": [held.key], "client": stock.id},
            )
            stock.loop.add_callback(before)  # it is sent once the session has begun here
            kept.invited()

        stock.sync(begin_between)
        assert stock.submit(operator.add, held, 3).result(30) == 6
        stock.sync(async_poll_for, lambda: not kept._unwritten, 30)
        recorder = recorder_of(cluster)
        assert recorder.sessions[stock.id] == kept._number


def test_a_dataset_is_published_after_the_graph_that_it_needs(tmp_path):
    with cluster_with(MarsSchedulerPlugin(journal=str(tmp_path / "journal"))) as (_, client):
        client.sync(async_poll_for, lambda: "_reconnect" in vars(client), 30)
        kept = resumable(client, 30.0)
        client.sync(async_poll_for, lambda: not kept._unwritten, 30)
        assert client.sync(ops_sent_on_return, kept) == [
            "update-graph",
            SESSION,
            "publish_flush_batched_send",
        ]


async def ops_sent_on_return(connection):
    client, sent = connection.client, []
    connection._resuming = True
    # The next scheduler has not given its token.
    client._send_to_scheduler_safe({"op": "variable-future-received-confirm", "token": "1"})
    future = client.submit(operator.add, 1, 2)
    publishing = asyncio.create_task(client._publish_dataset(total=future))
    await async_poll_for(lambda: connection._flushes, 30)
    stream, client.scheduler_comm = client.scheduler_comm, Recording(sent)
    connection._go_on_after(0)
    client.scheduler_comm, connection._resuming = stream, False
    stream.send(*map(dict, sent))
    await publishing
    ops = dict.fromkeys(message["op"] for message in sent)
    return [op for op in ops if op != "subscribe-topic"]


def test_scattered_data_is_wanted_though_its_result_was_asked_for_in_the_outage(tmp_path):
    with cluster_with(MarsSchedulerPlugin(journal=str(tmp_path / "journal"))) as (_, client):
        client.sync(async_poll_for, lambda: "_reconnect" in vars(client), 30)
        scattered = client.scatter(7)
        assert client.sync(wanted_on_return, resumable(client, 30.0), scattered) == [scattered.key]
        assert scattered.result(30) == 7


async def wanted_on_return(connection, future):
    client, sent = connection.client, []
    future._state.reset()  # as when it cannot be gathered
    stream, client.scheduler_comm = client.scheduler_comm, Recording(sent)
    connection._introduce(connection._number)
    client.scheduler_comm = stream
    stream.send({"op": "report-key", "key": future.key})
    return sent[0]["wants"]


class Recording:
    def __init__(self, sent):
        self.sent = sent

    def send(self, *messages):
        self.sent += messages


def test_a_graph_is_kept_that_brings_a_definition_which_the_journal_lacks(tmp_path):
    with cluster_with(True) as (cluster, client):
        before = client.submit(operator.add, 1, 2)
        wait(before)
        with pytest.warns(UserWarning, match="overwriting"):
            client.register_plugin(MarsSchedulerPlugin(journal=str(tmp_path / "journal")))
        with distributed.Client(cluster, set_as_default=False) as other:
            again = other.submit(operator.add, 1, 2)
            reader = other.submit(operator.add, again, 5)
            assert reader.result(30) == 8
            del again
            recorder = recorder_of(cluster)
            other.sync(async_poll_for, lambda: len(recorder._alive) == 2, 30)
            other.loop.add_callback(recorder.forget_dead_graphs)
            assert other.submit(operator.add, reader, 1).result(30) == 9
            assert recorder._alive.keys_of(1) == [before.key]
