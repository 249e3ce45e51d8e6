"""The Dask side panel of JupyterLab: our panes are listed there, and open while work goes on."""

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.browser import jupyterlab
from tests.browser.chromium import Watched, demand
from tests.browser.pages import PAGES

pytestmark = pytest.mark.extended


@pytest.fixture(scope="module")
def server(browser, tmp_path_factory) -> Iterator[str]:
    demand(jupyterlab.missing())
    with jupyterlab.jupyterlab(tmp_path_factory.mktemp("jupyter")) as address:
        yield address


@pytest.fixture(scope="module")
def open_lab(browser, server, working) -> Iterator[Callable[[bool], Watched]]:
    """``open_lab(dark)`` opens JupyterLab, its Dask panel connected through the server's proxy."""
    contexts = []

    def open_it(dark: bool) -> Watched:
        context = browser.new_context(
            viewport={"width": 1500, "height": 850},
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce",
        )
        contexts.append(context)
        watched = Watched(context)
        page = watched.page
        # A workspace of its own, else the panes of another one would be opened again.
        page.goto(server.replace("/lab?", f"/lab/workspaces/tests-{len(contexts)}?"))
        page.get_by_role("tab", name="Dask").click()
        field = page.locator(".dask-URLInput input")
        field.fill(f"proxy/{urlsplit(working.dashboard).port}")
        field.press("Enter")
        page.locator(".dask-DashboardListing-item button:enabled").first.wait_for()
        return watched

    yield open_it
    for context in contexts:
        context.close()


@pytest.fixture(scope="module")
def lab(open_lab) -> Watched:
    return open_lab(False)


def open_pane(lab: Watched, name: str) -> Any:
    """Click on a pane's button; return the frame that it opens, once something is drawn there."""
    lab.page.locator(f'.dask-DashboardListing-item button[value="Mars {name.title()}"]').click()
    frame = pane_frame(lab, name)
    lab.drawn(frame=frame)
    return frame


def pane_frame(lab: Watched, name: str) -> Any:
    """Return the frame of a pane that is seen."""
    route = f"individual-mars-{name}"
    pane = lab.page.locator(f'iframe[src*="{route}"]')
    pane.wait_for(state="visible")
    frame = pane.element_handle().content_frame()
    frame.wait_for_url(f"**/{route}")
    return frame


def drag_tab(lab: Watched, name: str, across: float, down: float) -> None:
    """Drag the tab of a pane to another place of the main area, given as shares of it."""
    tab = lab.page.locator("#jp-main-dock-panel .lm-TabBar-tab", has_text=f"Mars {name.title()}")
    area = lab.page.locator("#jp-main-dock-panel").bounding_box()
    mouse = lab.page.mouse
    tab.hover()
    held = tab.bounding_box()
    mouse.down()
    # Off the bar on its upper side: below it frames would swallow what the mouse does.
    mouse.move(held["x"] + 60, held["y"] - 40, steps=10)
    lab.page.locator(".lm-mod-drag-image").wait_for()
    mouse.move(area["x"] + across * area["width"], area["y"] + down * area["height"], steps=10)
    with lab.page.expect_event("framenavigated"):  # what is moved is loaded anew
        mouse.up()
    lab.page.locator(".lm-mod-drag-image").wait_for(state="detached")


def test_the_panel_lists_the_panes(lab):
    buttons = lab.page.locator(".dask-DashboardListing-item button")
    names = [one.get_attribute("value") for one in buttons.all()]
    found = {name for name in names if name.startswith("Mars ")}
    assert found == {f"Mars {name.title()}" for name in PAGES}


@pytest.mark.parametrize("name", PAGES)
def test_a_pane_opens_by_a_click(lab, name):
    frame = open_pane(lab, name)
    assert frame.evaluate("document.body.dataset.marsTheme") == "light"
    assert lab.faults == []


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_panes_are_dragged_beside_each_other(open_lab, camera, dark):
    lab = open_lab(dark)
    open_pane(lab, "plan")
    open_pane(lab, "memory")  # in front of the other one
    drag_tab(lab, "memory", 0.97, 0.5)
    theme = "dark" if dark else "light"
    for name in ("plan", "memory"):
        frame = pane_frame(lab, name)
        lab.drawn(frame=frame)
        assert frame.evaluate("document.body.dataset.marsTheme") == theme
    camera.take(lab.page, f"jupyterlab-{theme}")
    assert lab.faults == []
