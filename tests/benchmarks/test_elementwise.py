import pytest

from benchmarks.kernels import elementwise
from dask_marsched.bench.cluster import Setting
from dask_marsched.bench.workloads import Parameters

SETTING = Setting(2, 1, Parameters(0.1, 65536), timeout=60)


@pytest.mark.slow
def test_programs_are_timed_cold_and_warm():
    found = elementwise.run(("index",), ("stock", "default"), 1, SETTING)
    when = ["cold", *["next"] * 9, *["warm"] * 3]
    assert [(r.policy, r.when) for r in found] == [
        (p, w) for p in ("stock", "default") for w in when
    ]


def test_medians_are_compared_with_stock():
    seconds = {("stock", "cold"): 2.0, ("default", "cold"): 2.2}
    seconds |= {("stock", "next"): 1.0, ("default", "next"): 1.2}
    seconds |= {("stock", "warm"): 1.0, ("default", "warm"): 0.4}
    runs = [elementwise.Run("index", *of, value) for of, value in seconds.items()]
    assert elementwise.cells(runs)[1:5] == [
        ["index", "cold", "stock", "2000", "1.00", "-"],
        ["index", "cold", "default", "2200", "1.10", "not met"],
        ["geometric mean", "cold", "stock", "", "1.00", "-"],
        ["geometric mean", "cold", "default", "", "1.10", "not met"],
    ]
    assert elementwise.cells(runs)[6] == ["index", "next", "default", "1200", "1.20", "-"]
    assert elementwise.cells(runs)[10] == ["index", "warm", "default", "400", "0.40", "met"]


def test_unknown_programs_are_refused():
    with pytest.raises(ValueError, match="no program 'nothing'; there are rosenbrock"):
        elementwise.run(("nothing",), ("stock",), 1, SETTING)
