import ctypes
import gc
import operator
import threading
from functools import partial

import pytest

from dask_marsched.store.identities import IdentityMap
from dask_marsched.store.releases import Releases, expect_interrupts, expect_none


class Thing:
    """Something that ends."""

    def __init__(self, releases=None):
        self.releases = releases

    def __eq__(self, other):
        return True


@pytest.fixture
def done():
    return []


@pytest.fixture
def releases():
    return Releases()


def ending(releases, done, number):
    thing = Thing(releases)
    releases.at_end_of(thing, done.append, number)
    return thing


def test_what_has_ended_is_released_at_once_if_the_lock_is_free(releases, done):
    thing = ending(releases, done, 1)
    assert done == []
    del thing
    assert done == [1]


def test_a_finalizer_in_the_middle_does_not_wait_and_is_not_forgotten(releases, done):
    thing = ending(releases, done, 1)
    with releases.held():
        del thing  # as the garbage collector does, in the thread that holds the lock
        assert done == []
    assert done == [1]


def test_an_error_under_the_lock_forgets_nothing(releases, done):
    things = [ending(releases, done, 1)]

    def fail():
        with releases.held():
            things.clear()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert done == [1]


def test_an_argument_ends_with_the_object(releases, done):
    outer = Thing(releases)
    releases.at_end_of(outer, lambda kept: done.append(1), ending(releases, done, 2))
    assert done == []
    del outer
    assert done == [1, 2]


def test_an_error_stops_no_other_release(releases, done, caplog):
    things = [Thing(releases)]
    releases.at_end_of(things[0], lambda: 1 / 0)
    things.append(ending(releases, done, 1))
    with releases.held():
        things.clear()
    assert done == [1]
    assert "ZeroDivisionError" in caplog.text


def test_what_ends_together_with_its_releases_is_released(done):
    thing = ending(Releases(), done, 1)
    thing.itself = thing
    del thing
    gc.collect()
    assert done == [1]


def test_many_threads_lose_none(releases, done):
    def work(start):
        for i in range(start, start + 500):
            with releases.held():
                ending(releases, done, i)
            ending(releases, done, -i)

    threads = [threading.Thread(target=work, args=(1 + 500 * i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done) == sorted([*range(-2000, 0), *range(1, 2001)])


class Interrupted(BaseException):
    """Raised in another thread."""


class Task:
    """In whose thread an exception arrives."""

    held_back = False

    def hold_back(self):
        self.held_back = True

    def let_through(self):
        self.held_back = False


def in_thread(function):
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


def end_during_an_interrupt(things):
    """Clear a list in a thread in which an exception is raised at the same moment."""
    raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
    raise_in.argtypes = (ctypes.c_ulong, ctypes.py_object)

    def run():
        expect_interrupts(Task())
        # It is raised by the first function in Python that is called then.
        steps = [partial(raise_in, threading.get_ident(), Interrupted), things.clear]
        try:
            list(map(operator.methodcaller("__call__"), steps))
            for _ in range(1000):
                pass
        except Interrupted:
            pass
        expect_none()

    in_thread(run)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_loses_none(releases, done):
    end_during_an_interrupt([ending(releases, done, i) for i in range(3)])
    assert sorted(done) == [0, 1, 2]


def test_interrupts_wait_while_something_is_released(releases, done):
    task = Task()

    def run():
        expect_interrupts(task)
        thing = Thing(releases)
        # The inner one ends while the outer one is released.
        inner = Thing(releases)
        releases.at_end_of(inner, lambda: done.append(task.held_back))
        releases.at_end_of(thing, lambda kept: done.append(task.held_back), inner)
        del inner, thing
        done.append(task.held_back)
        expect_none()

    in_thread(run)
    assert done == [True, True, False]


def test_an_identity_map_knows_things_by_themselves():
    known = IdentityMap()
    a, b = Thing(), Thing()
    known.set(a, "a")
    assert (known.get(a), known.get(b)) == ("a", None)
    known.set(a, "again")
    assert known.get(a) == "again"
    del a
    gc.collect()
    assert not known._entries


def test_an_identity_map_forgets_things_during_an_interrupt():
    known = IdentityMap()
    things = [Thing(), Thing()]
    for thing in things:
        known.set(thing, "there")
    del thing
    end_during_an_interrupt(things)
    assert not known._entries


def test_objects_without_weak_references_are_not_stored():
    known = IdentityMap()
    thing = (1, 2)
    known.set(thing, 1)
    assert known.get(thing) is None
    assert thing not in known
