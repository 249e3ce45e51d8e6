import gc
import threading

import pytest

from dask_marsched.store.identities import IdentityMap
from dask_marsched.store.releases import Releases


def test_items_are_released_at_once_if_the_lock_is_free():
    done = []
    releases = Releases(done.append)
    releases.later(1)
    assert done == [1]


def test_a_finalizer_in_the_middle_does_not_wait_and_is_not_forgotten():
    done = []
    releases = Releases(done.append)
    with releases.held():
        releases.later(1)  # as the garbage collector does, in the thread that holds the lock
        assert done == []
    assert done == [1]


def test_an_error_under_the_lock_forgets_nothing():
    done = []
    releases = Releases(done.append)
    try:
        with releases.held():
            releases.later(1)
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    assert done == [1]


def test_many_threads_lose_none():
    done = []
    releases = Releases(done.append)

    def work(start):
        for i in range(start, start + 500):
            with releases.held():
                releases.later(i)
            releases.later(-i)

    threads = [threading.Thread(target=work, args=(1 + 500 * i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done) == sorted([*range(-2000, 0), *range(1, 2001)])


class Thing:
    def __eq__(self, other):
        return True


@pytest.mark.extended
def test_an_identity_map_knows_things_by_themselves():
    known = IdentityMap()
    a, b = Thing(), Thing()
    known.set(a, "a")
    assert (known.get(a), known.get(b)) == ("a", None)
    known.set(a, "again")
    assert known.get(a) == "again"
    del a
    gc.collect()
    assert len(known) == 0


def test_objects_without_weak_references_are_not_stored():
    known = IdentityMap()
    thing = (1, 2)
    known.set(thing, 1)
    assert known.get(thing) is None
    assert thing not in known
