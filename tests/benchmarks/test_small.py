import pytest

from benchmarks import small
from dask_marsched.bench.cluster import Setting
from dask_marsched.bench.workloads import Parameters


@pytest.mark.slow
def test_small_programs_are_timed_under_each_policy_in_turn(tmp_path):
    setting = Setting(2, 1, Parameters(1.0, 65536, tmp_path), timeout=60)
    found = small.run(("one-mean", "binary-mean"), ("stock", "default"), 2, setting)
    assert len(found) == 8
    _head, *rows = small.cells(found)
    assert [row[:2] for row in rows[::2]] == [
        [name, "stock"] for name in ("one-mean", "binary-mean", "geometric mean")
    ]
