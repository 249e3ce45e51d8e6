import textwrap

import pytest

from benchmarks import suite_tables
from benchmarks.public import runner
from dask_marsched.bench.metrics import Measurement

TEST = """
    import dask.array as da
    import pytest
    from coiled import Cluster
    from distributed import Client

    @pytest.fixture
    def client():
        with Cluster(name="local", n_workers=2) as cluster, Client(cluster) as client:
            yield client

    def test_sum(client):
        x = da.ones((40, 40), chunks=10)
        assert (x + x.T).sum().compute() == 3200

    def test_fails(client):
        assert client.submit(int, "5").result() == 6
"""


def suite_in(folder):
    (folder / "tests/benchmarks").mkdir(parents=True)
    for name in runner.FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")
    (folder / runner.FILES[0]).write_text(textwrap.dedent(TEST))
    (folder / "cluster_kwargs.yaml").write_text("default: {}\nsmall_cluster: {n_workers: 10}\n")
    return folder


@pytest.mark.slow
def test_tests_of_a_suite_are_measured_on_local_clusters(tmp_path):
    suite = suite_in(tmp_path)
    tests = runner.tests_of(suite, [])
    assert [test.rpartition("::")[2] for test in tests] == ["test_sum", "test_fails"]
    measured = []
    runner.run(suite, tests, ("stock", "default"), 1, timeout=120, progress=measured.append)
    done = [m for m in measured if m.workload.endswith("test_sum")]
    assert [(m.policy, m.error) for m in done] == [("stock", None), ("default", None)]
    assert all(m.sent and m.managed and m.pss and m.moved is not None for m in done)
    failed = [m for m in measured if m.workload.endswith("test_fails")]
    assert [m.error.partition(":")[0] for m in failed] == ["AssertionError"] * 2


@pytest.mark.extended  # pytest starts in a process of its own
def test_a_suite_without_tests_is_refused(tmp_path):
    (tmp_path / "cluster_kwargs.yaml").write_text("default: {}\n")
    with pytest.raises(ValueError, match="no tests"):
        runner.tests_of(tmp_path, [])


def test_bytes_count_where_more_than_25_mib_move():
    def of(policy, moved):
        return Measurement("t", policy, 0, seconds=1.0, moved=moved, managed=1, pss=1)

    many = suite_tables.rows_of([of("stock", 30 << 20), of("default", 60 << 20)])
    few = suite_tables.rows_of([of("stock", 20 << 20), of("default", 60 << 20)])
    assert [suite_tables.misses(row, runner.BARS) for row in many] == [[], ["moved"]]
    assert [suite_tables.misses(row, runner.BARS) for row in few] == [[], []]
