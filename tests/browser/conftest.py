"""One Chromium and one working cluster for all tests in it."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dask_marsched import performance_report
from tests.browser.chromium import Camera, Watched, chromium, demand, missing
from tests.browser.running import Work, analysis, misfortunes, working_cluster


@pytest.fixture(scope="package")
def browser() -> Iterator:
    demand(missing())
    with chromium() as started:
        yield started


@pytest.fixture
def open_page(browser) -> Iterator[Callable[..., Watched]]:
    """``open_page(url, dark=False)`` opens a page in a context of its own and watches it."""
    contexts = []

    def open_it(url: str, dark: bool = False, width: int = 1200, height: int = 700) -> Watched:
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light"
        )
        contexts.append(context)
        watched = Watched(context)
        watched.page.goto(url)
        return watched

    yield open_it
    for context in contexts:
        context.close()


@pytest.fixture(scope="package")
def camera(request, tmp_path_factory) -> Camera:
    """Pictures go to a temporary directory, unless pytest is told ``--screenshots DIR``."""
    given = request.config.getoption("--screenshots")
    directory = Path(given) if given else tmp_path_factory.mktemp("screenshots")
    directory.mkdir(parents=True, exist_ok=True)
    return Camera(directory)


@dataclasses.dataclass(frozen=True)
class Working:
    """A cluster that computes: its dashboard's address, a report of what has happened to it."""

    dashboard: str
    report: Path


@pytest.fixture(scope="package")
def working(browser, tmp_path_factory) -> Iterator[Working]:
    path = tmp_path_factory.mktemp("report") / "marsched-report.html"
    with working_cluster() as (cluster, client):
        with performance_report(path, client):
            client.compute(analysis(0)).result()
            misfortunes(cluster, client)
            client.compute(analysis(0)).result()
        with Work(client):
            yield Working(f"http://127.0.0.1:{cluster.scheduler.http_server.port}", path)


@pytest.fixture
def dashboard(working) -> str:
    """Address of the dashboard of a cluster that computes."""
    return working.dashboard
