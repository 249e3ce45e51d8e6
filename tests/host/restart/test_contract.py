"""What a restart expects of distributed is there; what is missing is named and changes nothing."""

from types import SimpleNamespace

import distributed
import pytest
from distributed import Scheduler, Worker

from dask_marsched.host.client import reconnection as of_client
from dask_marsched.host.restart import (
    held_objects,
    process,
    recorder,
    restoration,
    returning_workers,
    sessions,
)
from dask_marsched.host.worker import reconnection as of_worker
from dask_marsched.host.worker.reconnection import Reconnection

OF_SCHEDULER = [held_objects, recorder, restoration, returning_workers, sessions]


async def test_this_version_of_distributed_fits():
    async with (
        Scheduler(host="127.0.0.1", port=0, dashboard_address=":0") as s,
        Worker(s.address, dashboard_address=None) as worker,
        distributed.Client(s.address, asynchronous=True) as client,
    ):
        assert [misfit for part in OF_SCHEDULER for misfit in part.misfits(s)] == []
        assert process.misfits() == []
        assert of_client.misfits(client) == []
        assert of_worker.misfits(worker) == []


@pytest.mark.parametrize("part", [*OF_SCHEDULER, of_client, of_worker])
def test_what_is_missing_is_named(part):
    bare = SimpleNamespace(handlers={}, stream_handlers={})
    assert len(part.misfits(bare)) > 1


def test_a_worker_that_differs_stays_as_it_is():
    other = SimpleNamespace(close=None)
    with pytest.raises(RuntimeError, match=r"worker\.handle_scheduler.*: the worker closes when"):
        Reconnection(other, 1.0, lambda: None, lambda name, plugin: False).install()
    assert vars(other) == {"close": None}


def test_a_scheduler_that_closes_otherwise_stays_as_it_is():
    other = SimpleNamespace(close=None)
    with pytest.raises(RuntimeError, match=r"close.*: no journal is kept"):
        process.outlive_termination(other, None)
    assert vars(other) == {"close": None}


def test_counters_that_differ_are_named(monkeypatch):
    monkeypatch.setattr(process.TaskState, "_run_id_iterator", None)
    monkeypatch.delattr(process.shuffles, "ShuffleRunSpec")
    assert process.misfits() == [
        "TaskState._run_id_iterator is no counter",
        "ShuffleRunSpec.run_id has no counter",
    ]
