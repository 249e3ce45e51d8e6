"""The time left that `progress` tells, against what came: in virtual time."""

import pytest

from tests.simulation.estimates import ratios


@pytest.mark.extended
@pytest.mark.parametrize("workload", ["binary-mean", "vorticity"])
def test_the_time_left_is_about_what_is_left(workload):
    seconds, found = ratios(workload, size=8.0)
    assert seconds > 3
    assert all(0.7 < ratio < 1.3 for ratio in found[1:4]), found
