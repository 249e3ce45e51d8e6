"""The file of `performance_report`, opened as somebody does to whom it was sent."""

import re

import pytest

pytestmark = pytest.mark.extended


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_needs_nothing_and_shows_everything(working, open_page, camera, dark):
    report = working.report
    watched = open_page(report.as_uri(), dark=dark, width=900)
    page = watched.page
    assert watched.faults == []
    assert watched.requests == [report.as_uri()]  # nothing else was asked for
    for heading in ("Memory of the workers", "Transfers", "Fused kernels", "Faults", "Versions"):
        assert page.get_by_role("heading", name=heading).is_visible()
    text = page.locator("main").inner_text()
    assert re.search(r"Graph \d+: \d+ operands", text)
    assert re.search(r"stock Dask would have moved [\d.]+ [KMG]iB: an estimate", text)
    assert "a chunk with <no> time axis" in text
    assert re.search(r"workers lost\s+1", text)
    assert "marsched.failover.patience" in text
    # What is drawn is there, and has a size.
    plan = page.locator("figure").filter(has_text="depth in the graph").first
    assert plan.locator("path").count() >= 2
    assert plan.bounding_box()["height"] > 100
    memory = page.locator("figure").filter(has_text="limit").first
    assert memory.locator("path.line").count() >= 2
    # Nothing lies beyond the page's right border.
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    name = f"report-{'dark' if dark else 'light'}"
    camera.take(page, name, clip={"x": 0, "y": 0, "width": 900, "height": 900}, full_page=True)
