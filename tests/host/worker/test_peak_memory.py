"""The peak of this process between two moments."""

import numpy as np
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
    np.ones(25 * MB)  # 200 MB, gone again
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
