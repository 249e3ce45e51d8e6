from dataclasses import replace

import pytest

from dask_marsched.bench.metrics import Measurement
from dask_marsched.demo.analyses import KILLED
from dask_marsched.demo.comparison import compare

MIB = 2**20


@pytest.fixture
def measurements():
    stock = Measurement("eddies", "stock", 0, 12.34, 1200 * MIB, 300 * MIB, 900 * MIB, digest="a")
    stock = replace(stock, again=0)
    ours = replace(stock, policy="default", seconds=10.0, moved=60 * MIB, managed=150 * MIB)
    killed = Measurement(KILLED.title, "stock", 0, 20.0, managed=300 * MIB, digest="a", again=80)
    saved = replace(killed, policy="default", seconds=11.0, again=2)
    return [stock, ours, killed, saved]


@pytest.fixture
def comparisons(measurements):
    return compare(measurements)
