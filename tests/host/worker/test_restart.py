"""When nannies start the process that follows one that died."""

import asyncio
from types import SimpleNamespace

import pytest
from distributed.core import Status

from dask_marsched.host.replacements import Replacements
from dask_marsched.host.worker import nanny as restarting
from dask_marsched.host.worker.nanny import restart_patiently

#: Seconds that processors have been idle by far too long.
LONG = 1e9


class Dead:
    """A nanny whose worker has died."""

    def __init__(self):
        self.status = Status.running
        self.process = SimpleNamespace(status=Status.stopped)
        self.unregistered = 0

    async def _unregister(self, timeout=10):
        self.unregistered += 1


async def looks(nanny, *readings):
    """Return how many of the readings of idle time are left when the nanny may go on."""
    left, before = list(readings), nanny.unregistered
    with Replacements() as undo:
        restart_patiently(nanny, undo, lambda: left.pop(0))
        await nanny._unregister(timeout=1)
    assert "_unregister" not in vars(nanny)
    assert nanny.unregistered == before + 1
    return len(left)


async def test_a_restart_waits_for_an_idle_processor():
    assert await looks(Dead(), 0, LONG, "rest") == 1
    assert await looks(Dead(), 0, 0, 5, 5, 5, LONG, "rest") == 1


async def test_but_not_for_ever(monkeypatch):
    monkeypatch.setattr(restarting, "_LONGEST", 0.0)
    assert await looks(Dead(), "rest") == 1


async def test_a_process_that_dies_soon_after_another_is_replaced_at_once(monkeypatch):
    # Dask's clusters look 15 s after the first death, and close the nanny if nothing runs then.
    nanny = Dead()
    assert await looks(nanny, 0, LONG, "rest") == 1
    assert await looks(nanny, "rest") == 1
    monkeypatch.setattr(restarting, "_LOOKED_AFTER", 0.0)
    assert await looks(nanny, 0, LONG, "rest") == 1


@pytest.mark.parametrize("status", [Status.closing, Status.closing_gracefully])
async def test_a_closing_nanny_does_not_wait(status):
    nanny = Dead()
    nanny.status = status
    assert await looks(nanny, "rest") == 1


@pytest.mark.parametrize("status", [Status.closed, Status.running])
async def test_a_nanny_that_closes_meanwhile_logs_no_error(status):
    nanny = Dead()
    restart_patiently(nanny, Replacements(), lambda: 0)
    waiting = asyncio.create_task(nanny._unregister())
    await asyncio.sleep(0)
    nanny.status = status
    waiting.cancel()  # as a closing nanny does; distributed logs what is raised here
    await asyncio.wait([waiting])
    assert waiting.cancelled() == (status != Status.closed)


async def test_a_nanny_with_a_new_process_does_not_wait():
    nanny = Dead()

    def reading():
        nanny.process.status = Status.starting
        return 0

    restart_patiently(nanny, Replacements(), reading)
    await nanny._unregister()
    nanny.process = None
    await nanny._unregister()


def test_a_nanny_without_that_place_is_left_alone():
    other = SimpleNamespace()
    with Replacements() as undo:
        restart_patiently(other, undo)
    assert vars(other) == {}
