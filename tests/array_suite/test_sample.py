"""A sample of dask.array's own tests passes on a cluster with the plugin as it does without.

``python -m tests.array_suite.compare`` runs all of them.
"""

from importlib.util import find_spec

import pytest

from tests.array_suite.compare import run_suite

PROCESSES = 2 if find_spec("xdist") else 1


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_same_tests_pass() -> None:
    stock, ours = (run_suite(cluster, [], PROCESSES, 3) for cluster in ("stock", "marsched"))
    assert stock.passed() == ours.passed()
    assert len(ours.passed()) > 60
    assert sum(report["graphs_planned"] for report in ours.reports) > 20
    assert [report["exceptions"] for report in ours.reports] == [{}] * PROCESSES
