"""The garbage collector is off inside of the context, and then as it was; what was made is old."""

import gc
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from dask_marsched.host.scheduler import garbage_collection
from dask_marsched.host.scheduler.garbage_collection import collector_paused, cycles_freed


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    was_on = gc.isenabled()
    yield
    (gc.enable if was_on else gc.disable)()


def test_it_is_paused_until_the_last_user_has_left() -> None:
    gc.enable()
    first, second = ExitStack(), ExitStack()
    first.enter_context(collector_paused())
    second.enter_context(collector_paused())
    first.close()
    assert not gc.isenabled()
    second.close()
    assert gc.isenabled()


def test_users_that_always_overlap_do_not_keep_it_from_collecting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gc.enable()
    monkeypatch.setattr(garbage_collection, "_LONGEST", 0.0)
    with collector_paused():
        seen = weakref.ref(_Cycle())
        with collector_paused():
            assert seen() is not None
        assert seen() is None
        assert not gc.isenabled()


def test_it_resumes_after_an_error() -> None:
    gc.enable()
    with pytest.raises(KeyError), collector_paused():
        raise KeyError
    assert gc.isenabled()


def test_it_stays_off_if_it_was_off() -> None:
    gc.disable()
    with collector_paused():
        pass
    assert not gc.isenabled()


class _Cycle:
    def __init__(self) -> None:
        self.me = self


def _many() -> list[list[int]]:
    return [[i] for i in range(5_000)]


def _is_old(thing: object) -> bool:
    return any(other is thing for other in gc.get_objects(generation=2))


def _look_after(objects: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a collection due after so many new objects, whatever is alive in this process."""
    monkeypatch.setattr(garbage_collection, "_MOST_MORE", objects)
    monkeypatch.setattr(garbage_collection, "_SHARE", 0.0)
    gc.enable()
    garbage_collection.collect()


def test_many_new_objects_are_not_passed_over() -> None:
    gc.enable()
    with collector_paused():
        made = _many()
    assert _is_old(made[-1])


def test_what_somebody_has_frozen_stays_so() -> None:
    gc.enable()
    gc.freeze()
    try:
        with collector_paused():
            made = _many()
        assert gc.get_freeze_count() > 0
        assert not _is_old(made[-1])
    finally:
        gc.unfreeze()


def test_cycles_are_freed_while_the_collector_is_paused() -> None:
    gc.enable()
    with collector_paused():
        before = _many()
        with cycles_freed():
            left = weakref.ref(_Cycle())
        assert left() is None
        assert _is_old(before[-1])  # so that it was not passed over, either


def test_cycles_that_were_treated_as_old_are_freed_later(monkeypatch: pytest.MonkeyPatch) -> None:
    _look_after(20_000, monkeypatch)
    found = []
    for _ in range(15):
        with collector_paused():
            found += [weakref.ref(_Cycle()) for _ in range(2_000)]
    assert sum(one() is not None for one in found) <= len(found) / 2


def test_objects_that_are_gone_are_no_reason_to_collect(monkeypatch: pytest.MonkeyPatch) -> None:
    _look_after(18_000, monkeypatch)
    kept = []
    for _ in range(4):
        with collector_paused():
            kept.append(_many())
    assert garbage_collection.is_due()
    kept.clear()
    assert not garbage_collection.is_due()
    assert not garbage_collection.may_be_due()  # until as many are made again


def test_nothing_is_freed_where_the_collector_was_off() -> None:
    gc.disable()
    with collector_paused(), cycles_freed():
        left = weakref.ref(_Cycle())
    cycle = left()
    assert cycle is not None
    del cycle.me


def test_a_tuple_that_another_thread_is_making_can_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    # It cannot while anybody else refers to it: SystemError in the code of a user.
    monkeypatch.setattr(garbage_collection, "_LONGEST", 0.0)
    gc.enable()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)

    def collect() -> None:
        for _ in range(5):
            with collector_paused(), collector_paused():
                pass  # the inner one is overdue

    thread = threading.Thread(target=collect)
    thread.start()
    try:
        while thread.is_alive():
            assert len(tuple(i for i in range(1_000))) == 1_000
    finally:
        thread.join()
        sys.setswitchinterval(interval)


def test_collecting_counts_what_is_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage_collection, "_alive", 0)
    made = _many()
    garbage_collection.collect()
    assert len(made) < garbage_collection._alive <= len(gc.get_objects())
    assert _is_old(made[-1])
