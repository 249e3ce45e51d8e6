"""Pages of the dashboard, in a browser, while a computation runs."""

import pytest

from tests.browser.pages import PAGES

pytestmark = pytest.mark.extended


def test_a_stock_page_is_drawn(dashboard, open_page):
    watched = open_page(f"{dashboard}/status")
    watched.drawn(rows=2)
    assert watched.faults == []


@pytest.mark.parametrize(
    "dark", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["light", "dark"]
)
@pytest.mark.parametrize("name", PAGES)
def test_a_page_shows_what_goes_on(dashboard, open_page, camera, name, dark):
    theme = "dark" if dark else "light"
    watched = open_page(f"{dashboard}/mars-{name}", dark=dark)
    watched.drawn()
    page = watched.page
    assert page.evaluate("document.body.dataset.marsTheme") == theme
    # The dashboard's own bar leads to all of them.
    assert page.locator(f".dropdown-content a[href='mars-{name}']").count() == 1
    assert not page.get_by_text("This pane failed").count()
    camera.take(page, f"{name}-{theme}")
    assert watched.faults == []


def test_the_overview_has_four_of_them(dashboard, open_page):
    watched = open_page(f"{dashboard}/mars", height=900)
    watched.drawn()
    assert watched.faults == []


@pytest.mark.parametrize("name", PAGES)
def test_a_pane_is_drawn_alone(dashboard, open_page, name):
    watched = open_page(f"{dashboard}/individual-mars-{name}")
    watched.drawn()
    assert watched.faults == []
