"""Pages of the dashboard, in a browser, while a computation runs."""


def test_a_stock_page_is_drawn(dashboard, open_page, camera):
    watched = open_page(f"{dashboard}/status")
    watched.drawn(rows=2)
    camera.take(watched.page, "status")
    assert watched.faults == []
