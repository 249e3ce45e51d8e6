"""The garbage collector is off while anything is read or planned, and then as it was."""

import gc
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from dask_marsched.host.scheduler.garbage_collection import not_collecting


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    was_on = gc.isenabled()
    yield
    (gc.enable if was_on else gc.disable)()


def test_it_is_paused_until_the_last_is_done_whatever_their_order() -> None:
    gc.enable()
    first, second = ExitStack(), ExitStack()
    first.enter_context(not_collecting())
    second.enter_context(not_collecting())
    first.close()
    assert not gc.isenabled()
    second.close()
    assert gc.isenabled()


def test_it_comes_back_after_an_error() -> None:
    gc.enable()
    with pytest.raises(KeyError), not_collecting():
        raise KeyError
    assert gc.isenabled()


def test_who_has_switched_it_off_finds_it_off() -> None:
    gc.disable()
    with not_collecting():
        pass
    assert not gc.isenabled()
