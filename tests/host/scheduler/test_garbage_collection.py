"""The garbage collector is off inside of the context, and then as it was."""

import gc
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from dask_marsched.host.scheduler.garbage_collection import collector_paused


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
