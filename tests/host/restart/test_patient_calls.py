"""Calls that are sent again when the scheduler is back."""

import asyncio
from types import SimpleNamespace

import distributed
import pytest
from distributed.comm import CommClosedError
from distributed.core import ConnectionPool

from dask_marsched.host.client import patient_calls
from dask_marsched.host.client.patient_calls import PatientCalls

BACK = 0.05  # seconds of an outage
NOTICED = 0.01  # seconds after which it is noticed
BREAKS, HANGS = CommClosedError("in a test"), TimeoutError("of the scheduler")


class Dies(CommClosedError):
    """The call fails as the scheduler dies."""


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(patient_calls, "_BETWEEN", 0.001)
    monkeypatch.setattr(patient_calls, "_NOTICED", 0.1)


class Place:
    """A connection that breaks, and is back soon or never."""

    returned, away = 0, False

    def is_away(self):
        return self.away

    def leave(self, comes_back=True):
        self.away = True
        if comes_back:
            asyncio.get_running_loop().call_later(BACK, self.come_back)

    def come_back(self):
        self.returned += 1
        self.away = False


class Rpc:
    """Calls of a scheduler that give these answers."""

    def __init__(self, place, answers):
        self.place = place
        self.answers = list(answers)
        self.asked = []

    def __getattr__(self, op):
        async def call(**kwargs):
            self.asked.append((op, kwargs))
            answer = self.answers.pop(0)
            if isinstance(answer, Dies):
                asyncio.get_running_loop().call_later(NOTICED, self.place.leave)
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call


def patient(*answers):
    place = Place()
    rpc = Rpc(place, answers)
    PatientCalls(rpc, place).install()
    return rpc, place


async def test_a_call_is_sent_again_with_what_is_left_of_its_timeout():
    rpc, place = patient(Dies(), Dies(), "answer")
    assert await rpc.variable_get(name="x", timeout="10 s") == "answer"
    assert place.returned == 2
    assert [op for op, _ in rpc.asked] == ["variable_get"] * 3
    assert 9 < rpc.asked[-1][1]["timeout"] < 10 - 2 * BACK


async def test_a_call_in_an_outage_is_sent_when_it_is_over():
    rpc, place = patient("answer")
    place.leave()
    assert await rpc.variable_get(name="x", timeout=None) == "answer"
    assert place.returned == 1


async def test_a_timeout_may_end_in_the_outage():
    rpc, place = patient()
    place.leave(comes_back=False)
    assert not await rpc.event_wait(name="x", timeout=0.01)
    assert not await rpc.semaphore_acquire(name="x", timeout=0, lease_id="a")
    with pytest.raises(distributed.TimeoutError, match="not back in time"):
        await rpc.variable_get(name="x", timeout=0.01)
    assert rpc.asked == []


@pytest.mark.parametrize("fault", [BREAKS, HANGS])
async def test_a_call_that_fails_while_the_scheduler_lives_raises(fault):
    rpc, _ = patient(fault)
    with pytest.raises(type(fault), match=str(fault)):
        await rpc.variable_get(name="x", timeout=None)


async def test_the_error_is_raised_if_the_scheduler_does_not_come_back():
    rpc, place = patient(BREAKS)
    loop = asyncio.get_running_loop()
    loop.call_later(NOTICED, place.leave, False)
    loop.call_later(BACK, setattr, place, "away", False)
    with pytest.raises(CommClosedError):
        await rpc.event_set(name="x")


async def test_a_semaphore_is_registered_again_that_the_journal_may_lack():
    rpc, _ = patient(None, Dies(), None, True, True)
    await rpc.semaphore_register(name="x", max_leases=2)
    assert await rpc.semaphore_acquire(name="x", lease_id="a")
    assert await rpc.semaphore_acquire(name="x", lease_id="b")
    assert [op.removeprefix("semaphore_") for op, _ in rpc.asked] == [
        *("register", "acquire", "register", "acquire", "acquire")
    ]
    assert rpc.asked[2][1] == {"name": "x", "max_leases": 2}


async def test_the_last_registrations_are_remembered(monkeypatch):
    monkeypatch.setattr(patient_calls, "_REMEMBERED", 2)
    rpc, place = patient(*[None] * 4, *[True] * 4, None)
    for name in "abac":
        await rpc.semaphore_register(name=name, max_leases=1)
    place.come_back()
    for name in "bac":
        await rpc.semaphore_acquire(name=name)
    again = [kwargs["name"] for op, kwargs in rpc.asked[4:] if op == "semaphore_register"]
    assert again == ["a", "c"]


async def test_a_semaphore_that_was_closed_is_not_registered_again():
    rpc, place = patient(None, None, True)
    await rpc.semaphore_register(name="x", max_leases=1)
    await rpc.semaphore_close(name="x")
    place.come_back()
    await rpc.semaphore_acquire(name="x")
    assert [op for op, _ in rpc.asked[2:]] == ["semaphore_acquire"]


async def test_a_lease_is_not_refreshed_after_an_outage():
    rpc, place = patient("refreshed")
    place.leave()
    assert await rpc.semaphore_refresh_leases(name="x", lease_ids=["a"]) is None
    place.come_back()
    assert await rpc.semaphore_refresh_leases(name="x", lease_ids=["a"]) == "refreshed"


async def test_a_call_that_may_have_taken_effect_is_not_sent_again():
    rpc, _ = patient(Dies(), None)
    with pytest.raises(CommClosedError):
        await rpc.queue_get(name="x", timeout=None)


async def test_a_worker_and_its_client_may_share_the_calls():
    pool = await ConnectionPool()
    rpc = pool("tcp://127.0.0.1:1")
    before, of_worker = dict(vars(rpc)), PatientCalls(rpc, Place())
    of_worker.install()
    installed = dict(vars(rpc))
    of_client = PatientCalls(rpc, Place())
    of_client.install()
    of_client.uninstall()
    assert vars(rpc) == installed != before
    of_worker.uninstall()
    assert vars(rpc) == before
    await pool.close()


def test_calls_that_are_made_otherwise_are_named(monkeypatch):
    assert patient_calls.misfits() == []
    monkeypatch.setattr(patient_calls, "core", SimpleNamespace())
    assert patient_calls.misfits() == ["PooledRPCCall.__getattr__ is missing"]


async def test_workers_are_retired_once_more_only_if_they_are_named():
    rpc, _ = patient(Dies(), "retired")
    assert await rpc.retire_workers(workers=["tcp://127.0.0.1:1"]) == "retired"
    rpc, _ = patient(Dies(), "others")
    with pytest.raises(Dies):
        await rpc.retire_workers(n=2)
