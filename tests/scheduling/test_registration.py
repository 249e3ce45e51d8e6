"""All users of a scheduler can see who registered the plugin."""

import getpass
import json
import logging
import os
import socket

import pytest
from distributed import Client
from distributed.protocol.pickle import dumps, loads
from distributed.utils_test import gen_cluster

import dask_marsched
from dask_marsched.config import Settings
from dask_marsched.monitoring.status_text import registrant
from dask_marsched.scheduler_plugin import MarsSchedulerPlugin
from dask_marsched.scheduling.registration import Origin, Registration

HERE = {"user": getpass.getuser(), "host": socket.gethostname(), "pid": os.getpid()}


@pytest.fixture
def told(caplog):
    caplog.set_level(logging.WARNING, "dask_marsched")
    return caplog


def registered(s):
    return s.plugins["marsched"].report()["registered"]


@gen_cluster(client=True, nthreads=[])
async def test_status_names_who_registered_the_plugin(c, s):
    await c.register_plugin(MarsSchedulerPlugin())
    found = registered(s)
    assert {key: found[key] for key in HERE} == HERE
    assert (found["by"], found["replaced"]) == ("client", None)
    assert c.id in found["clients"]
    text = str(await dask_marsched.status(c))
    assert f"  registered        by {registrant(found)}, " in text
    assert c.id in text
    assert "in place of" not in text
    json.dumps(found)


@pytest.mark.filterwarnings("ignore:Scheduler already contains a plugin")
@gen_cluster(client=True, nthreads=[])
async def test_the_later_configuration_wins_and_status_shows_both(c, s, told):
    await c.register_plugin(MarsSchedulerPlugin(settings=Settings(adopt="off")))
    first = registered(s)
    async with Client(s.address, asynchronous=True) as other:
        await other.register_plugin(MarsSchedulerPlugin("dfs", settings=Settings(adopt="all")))
        changed = {
            "marsched.failover.adopt": ["off", "all"],
            "marsched.assignment.policy": ["units", "dfs"],
        }
        found = registered(s)["replaced"]
        assert found["changed"] == changed
        assert (found["time"], found["pid"]) == (first["time"], os.getpid())
        (record,) = told.records
        assert "marsched.failover.adopt: off -> all" in record.getMessage()
        assert "marsched.failover.adopt off -> all" in str(await dask_marsched.status(c))
        await other.register_plugin(MarsSchedulerPlugin("dfs", settings=Settings(adopt="all")))
        assert registered(s)["replaced"]["changed"] == {}
        assert len(told.records) == 1
        assert "of the same configuration" in str(await dask_marsched.status(c))
    # A client that is gone is not named any more.
    assert other.id not in registered(s)["clients"]


@pytest.mark.filterwarnings("ignore:Scheduler already contains a plugin")
@gen_cluster(nthreads=[], config={"distributed.scheduler.preload": ["dask_marsched"]})
async def test_by_preload_or_by_code_on_the_scheduler(s):
    assert registered(s)["by"] == "preload"
    await s.register_scheduler_plugin(MarsSchedulerPlugin(), idempotent=False)
    found = registered(s)
    assert (found["by"], found["replaced"]["by"]) == ("scheduler", "preload")
    assert "--preload" in registrant(found["replaced"])
    assert "code in the process" in registrant(found)


def test_only_the_last_replacement_is_kept():
    kept = None
    for time in range(4):
        kept = Registration(Origin.here("client"), time, Settings(), {}, kept)
    assert kept.replaced.time == 2
    assert kept.replaced.replaced is None


def test_a_user_without_a_name(monkeypatch):
    def nameless():
        raise OSError("no name")

    monkeypatch.setattr(getpass, "getuser", nameless)
    assert Origin.here("client").user == str(os.getuid())
    assert loads(dumps(MarsSchedulerPlugin())).origin.pid == os.getpid()
