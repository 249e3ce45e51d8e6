"""The Dask side panel of JupyterLab: our panes are listed there, and open while work goes on."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.browser import jupyterlab
from tests.browser.chromium import Watched, demand


@pytest.fixture(scope="module")
def server(browser, tmp_path_factory) -> Iterator[str]:
    demand(jupyterlab.missing())
    with jupyterlab.jupyterlab(tmp_path_factory.mktemp("jupyter")) as address:
        yield address


@pytest.fixture(scope="module")
def lab(browser, server, working) -> Iterator[Watched]:
    """JupyterLab with its Dask panel connected to the dashboard, through its proxy."""
    context = browser.new_context(viewport={"width": 1500, "height": 850})
    watched = Watched(context)
    page = watched.page
    page.goto(server)
    page.get_by_role("tab", name="Dask").click()
    field = page.locator(".dask-URLInput input")
    field.fill(f"proxy/{urlsplit(working.dashboard).port}")
    field.press("Enter")
    page.locator(".dask-DashboardListing-item button:enabled").first.wait_for()
    yield watched
    context.close()


def open_pane(lab: Watched, name: str) -> Any:
    """Click on a pane's button; return the frame that it opens, once something is drawn there."""
    lab.page.locator(f'.dask-DashboardListing-item button[value="{name}"]').click()
    route = "individual-" + name.lower().replace(" ", "-")
    pane = lab.page.locator(f'iframe[src*="{route}"]')
    pane.wait_for()
    frame = pane.element_handle().content_frame()
    frame.wait_for_url(f"**/{route}")
    lab.drawn(frame=frame)
    return frame


def test_a_stock_pane_opens_by_a_click(lab):
    open_pane(lab, "Task Stream")
    assert lab.faults == []
