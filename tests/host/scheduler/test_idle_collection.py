"""Garbage that was left while graphs arrived is collected when no task runs."""

from types import SimpleNamespace
from typing import Any

import pytest
from dask import delayed
from distributed.utils_test import async_poll_for

from dask_marsched.host.scheduler import garbage_collection
from dask_marsched.host.scheduler.idle_collection import IdleCollection
from tests.harness import planned_cluster


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Count collections, each of which is due until it is made."""
    found: list[bool] = []
    for name in ("is_due", "may_be_due"):
        monkeypatch.setattr(garbage_collection, name, lambda: not found)
    monkeypatch.setattr(garbage_collection, "collect", lambda: found.append(True))
    return found


@pytest.mark.parametrize(
    "busy", [{"queued": ["task"]}, {"workers": {"a": SimpleNamespace(processing={"task": 1.0})}}]
)
def test_it_waits_until_no_task_runs(collected: list[bool], busy: dict[str, Any]) -> None:
    idle = {"queued": [], "workers": {"a": SimpleNamespace(processing={})}}
    check: Any = IdleCollection(SimpleNamespace(**idle | busy), lambda *_: None)
    check.check()
    assert not collected
    assert check.goes_on()
    check.scheduler = SimpleNamespace(**idle)
    check.check()
    assert collected
    assert not check.goes_on()


@planned_cluster([("127.0.0.1", 1)])
async def test_graphs_that_arrive_lead_to_it(c: Any, s: Any, *workers: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(IdleCollection, "interval", 0.01)
        found: list[bool] = []
        patch.setattr(garbage_collection, "is_due", lambda: not found)
        patch.setattr(garbage_collection, "collect", lambda: found.append(True))
        assert await c.compute(delayed(int)()) == 0
        await async_poll_for(lambda: found, 5)
