"""Fixtures: real clusters, in this process where possible, as commands where it matters."""

import sys
from collections.abc import Callable, Iterator, Mapping

import dask
import pytest
from distributed import LocalCluster
from hypothesis import settings

from tests.processes import (
    SCHEDULER_OPTIONS,
    WITHOUT_PACKAGE,
    Process,
    local_cluster,
    running,
    scheduler_address,
    scheduler_command,
)

# jsonschema imports this where it is installed, though no format is checked here. It compiles
# grammars for more than a second, in every process that runs tests.
sys.modules.setdefault("rfc3987_syntax", None)

# No test fails on a clock: how long an example takes says more about the machine.
settings.register_profile("marsched", deadline=None)
# `make test` tries fewer examples, `make test-all` all.
settings.register_profile("quick", deadline=None, max_examples=30)
settings.load_profile("marsched")

# A LocalCluster gives up a worker that is not back 15 s after it died, for good: where much runs
# at once a process takes longer to start.
dask.config.set({"distributed.deploy.lost-worker-timeout": "10 minutes"})


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--screenshots",
        metavar="DIR",
        help="where the browser tests put their pictures (docs/images), else a temporary one",
    )


@pytest.fixture
def start() -> Iterator[Callable[..., Process]]:
    """``start(*command, env=...)`` starts a command and returns it as a `Process`."""
    with running() as starter:
        yield starter


@pytest.fixture
def start_scheduler(start: Callable[..., Process]) -> Callable[..., tuple[str, Process]]:
    """``start_scheduler(*options, env=...)`` runs ``dask scheduler``; address and process."""

    def start_it(*args: str, env: Mapping[str, str] | None = None) -> tuple[str, Process]:
        process = start(*scheduler_command(*args), env=env)
        return scheduler_address(process), process

    return start_it


@pytest.fixture(scope="session")
def bare_scheduler() -> Iterator[str]:
    """Address of a scheduler in whose process dask_marsched cannot be imported."""
    code = WITHOUT_PACKAGE + "from distributed.cli.dask_scheduler import main; main()"
    with running() as starter:
        yield scheduler_address(starter(sys.executable, "-c", code, *SCHEDULER_OPTIONS))


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    """A stock cluster in this process: two workers with a thread each."""
    with local_cluster(n_workers=2, processes=False) as made:
        yield made
