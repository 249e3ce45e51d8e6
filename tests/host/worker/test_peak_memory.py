"""The peak of this process between two moments."""

import mmap

import psutil
import pytest

from dask_marsched.host.worker.peak_memory import PeakMeter

MB = 10**6


def test_a_peak_that_is_over_is_seen_once():
    meter = PeakMeter()
    if not meter.available:
        pytest.skip("this kernel does not tell")
    meter.lap()
    before = psutil.Process().memory_info().rss
    # Not an array: NumPy may have memory left, or that of a store that another test has installed.
    with mmap.mmap(-1, 200 * MB) as fresh:
        for page in range(0, len(fresh), mmap.PAGESIZE):
            fresh[page] = 1
    assert meter.lap() >= before + 190 * MB
    assert meter.lap() < before + 100 * MB
    meter.close()
    meter.close()
    assert not meter.available
    assert meter.lap() == 0


def test_of_two_workers_in_one_process_none_measures():
    meter = PeakMeter()
    if not meter.available:
        pytest.skip("this kernel does not tell")
    other = PeakMeter()
    assert not meter.available
    assert not other.available
    other.close()
    assert meter.available
    meter.close()
