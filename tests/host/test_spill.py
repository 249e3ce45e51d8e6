"""Results that are evicted by key, in threads, against distributed's own semantics."""

import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from distributed.spill import SpillBuffer

from dask_marsched.host import spill

KB = 1000


class Unpicklable:
    def __reduce__(self):
        raise TypeError("no")


@pytest.fixture
def data(tmp_path):
    return SpillBuffer(str(tmp_path), target=100 * KB)


def array(n, nbytes=10 * KB):
    return np.full(nbytes // 8, n, dtype="f8")


def test_adopted_and_given_back(data, tmp_path):
    data["before"] = array(0)
    tiers = spill.adopt(data, lambda key, nbytes: True)
    assert tiers is data
    data.update({n: array(n, 40 * KB) for n in range(5)})
    # More than the target, and nothing was evicted.
    assert len(data.fast) == 6
    assert tiers.evict_key(3) >= 40 * KB
    spill.give_back(data)
    spill.give_back(data)
    assert type(data) is SpillBuffer
    assert vars(data).keys() == vars(SpillBuffer(str(tmp_path / "other"), target=1)).keys()
    assert data.n == 100 * KB
    assert data.spilled_total.memory == pytest.approx(40 * KB, rel=0.05)
    data["more"] = array(6)
    assert data.fast.total_weight <= data.n
    np.testing.assert_array_equal(data[3], array(3, 40 * KB))


def test_other_mappings_are_left_alone():
    assert spill.adopt({}, lambda key, nbytes: True) is None
    spill.give_back({})


@pytest.mark.parametrize("promoted", [True, False])
def test_what_is_read_back_is_promoted_or_stays_on_disk(data, promoted):
    asked = []
    tiers = spill.adopt(data, lambda key, nbytes: asked.append((key, nbytes)) or promoted)
    data["x"] = array(1)
    nbytes = tiers.evict_key("x")
    assert tiers.is_spilled("x")
    np.testing.assert_array_equal(tiers.load("x"), array(1))
    assert asked == [("x", nbytes)]
    assert tiers.is_spilled("x") is not promoted
    assert len(data) == 1
    assert tiers.held == (nbytes if promoted else 0)
    del data["x"]
    assert data.spilled_total == (0, 0)
    with pytest.raises(KeyError):
        tiers.load("x")


def test_what_is_read_twice_at_once_is_one_object(data):
    tiers = spill.adopt(data, lambda key, nbytes: False)
    data["x"] = array(1)
    tiers.evict_key("x")
    first = tiers.load("x")
    assert tiers.load("x") is first


def test_what_cannot_be_written_stays(data):
    tiers = spill.adopt(data, lambda key, nbytes: True)
    data["x"] = Unpicklable()
    assert "x" in tiers.resident
    assert tiers.evict_key("x") == -1
    assert "x" in data.fast
    # It will not be tried again.
    assert "x" not in tiers.resident
    assert tiers.evict_key("gone") == 0


def test_a_full_disk_keeps_data_in_memory(tmp_path):
    data = SpillBuffer(str(tmp_path), target=sys.maxsize, max_spill=15 * KB)
    tiers = spill.adopt(data, lambda key, nbytes: True)
    data.update({n: np.random.default_rng(n).random(1250) for n in range(2)})
    assert tiers.evict_key(0) > 0
    assert tiers.evict_key(1) == -1
    assert set(data.fast) == {1}
    assert set(data.slow) == {0}


def test_threads_evict_and_load_while_results_come_and_go(data):
    tiers = spill.adopt(data, lambda key, nbytes: key % 2 == 0)
    with ThreadPoolExecutor(4) as pool:
        for round_ in range(20):
            data.update({n: array(n) for n in range(20)})
            futures = [pool.submit(tiers.evict_key, n) for n in range(20)]
            futures += [pool.submit(tiers.load, n) for n in range(10)]
            for n in range(10, 20):
                del data[n]
            for n, future in enumerate(futures[20:]):
                np.testing.assert_array_equal(future.result(), array(n))
            assert all(future.result() >= 0 for future in futures[:20])
            for n in range(10):
                np.testing.assert_array_equal(data[n], array(n))
                del data[n]
            assert not data, round_
    assert data.spilled_total == (0, 0)
    assert tiers.held == 0
    assert not data.slow
