"""The parts of the twin that touch distributed: what they replace, and that they restore it."""

import asyncio
import logging
import threading

import distributed.metrics
import distributed.scheduler
import distributed.worker_state_machine
import pytest

from dask_marsched.host.twin.scheduler import collected_errors, expression
from dask_marsched.host.twin.virtual_time import TwinLoop, settle, virtual_time
from dask_marsched.simulation.cluster.clock import EPOCH, EventQueue


def test_virtual_time_holds_in_this_thread_only_and_ends():
    before = {name: vars(distributed.scheduler)[name] for name in ("time", "monotonic")}
    task_state = distributed.worker_state_machine.TaskState
    elsewhere = []
    with virtual_time(lambda: 42.0):
        assert distributed.scheduler.time() == 42.0
        assert distributed.worker_state_machine.monotonic() == 42.0
        late = distributed.metrics.time  # as a module imported only now would get it
        thread = threading.Thread(target=lambda: elsewhere.append(distributed.scheduler.time()))
        thread.start()
        thread.join()
        assert late() == 42.0
    assert elsewhere[0] > 1e9
    assert late() > 1e9
    assert {name: vars(distributed.scheduler)[name] for name in before} == before
    assert distributed.worker_state_machine.TaskState is task_state


def test_virtual_time_ends_after_an_error():
    with pytest.raises(KeyError), virtual_time(lambda: 42.0):
        raise KeyError
    assert distributed.scheduler.time() > 1e9


def test_timers_of_the_loop_run_in_virtual_time():
    queue = EventQueue()
    loop = TwinLoop(queue)
    seen = []

    async def sleeper():
        await asyncio.sleep(100.0)  # workload: virtual seconds
        seen.append(queue.now - EPOCH)

    async def main():
        task = loop.create_task(sleeper())
        handle = loop.call_later(50.0, seen.append, "cancelled")
        handle.cancel()
        calls = await settle(loop, 0)
        while len(queue):
            queue.step()
            calls = await settle(loop, calls)
        assert task.done()

    try:
        loop.run_until_complete(main())
    finally:
        loop.close()
    assert seen == [100.0]


def test_settle_runs_what_callbacks_make_due():
    queue = EventQueue()
    loop = TwinLoop(queue)
    seen = []

    async def main():
        loop.call_soon(loop.call_soon, seen.append, "inner")
        calls = await settle(loop, 0)
        assert await settle(loop, calls) == calls

    try:
        loop.run_until_complete(main())
    finally:
        loop.close()
    assert seen == ["inner"]


def test_logged_exceptions_are_collected_in_this_thread_only(caplog):
    logger = logging.getLogger("distributed.scheduler")

    def log():
        try:
            raise KeyError("boom")
        except KeyError:
            logger.exception("a hook failed")

    with collected_errors() as errors:
        log()
        logger.error("silenced")
        thread = threading.Thread(target=log)
        thread.start()
        thread.join()
    assert [record.getMessage() for record in errors] == ["a hook failed"]
    assert len(errors) == 1


def test_an_expression_has_the_same_keys_every_time():
    import dask.array as da

    x, y = da.ones(8, chunks=4).sum(), da.ones(8, chunks=2).sum()
    assert expression([x])[1] == expression([x])[1]
    assert expression([x])[1] != expression([y])[1]


def test_what_is_no_collection_is_refused():
    with pytest.raises(TypeError, match="not a Dask collection: int"):
        expression([3])
