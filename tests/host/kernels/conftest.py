"""What the tests of kernels in tasks share."""

import pytest


@pytest.fixture
def runner(monkeypatch):
    from tests.host.kernels.kernel_runs import a_runner  # skips where there is no LLVM

    with a_runner(monkeypatch) as made:
        yield made
