import pytest

from dask_marsched.bench.metrics import Measurement
from dask_marsched.demo.comparison import Comparison


def measured(moved, managed, pss, seconds):
    return Measurement("name", "policy", 0, seconds, moved, managed, pss)


@pytest.fixture
def comparisons():
    mib = 2**20
    return [
        Comparison(
            "much",
            "an analysis that moves much",
            measured(1200 * mib, 300 * mib, 900 * mib, 12.34),
            measured(60 * mib, 150 * mib, 810 * mib, 10.0),
            equal=True,
        ),
        Comparison(
            "nothing",
            "another that moves nothing",
            measured(0, 30 * mib, 600 * mib, 1.0),
            measured(3 * mib, 45 * mib, 606 * mib, 1.5),
            equal=True,
        ),
    ]
