"""Pages of the dashboard, in a browser, while a computation runs."""


def test_a_stock_page_is_drawn(dashboard, open_page):
    watched = open_page(f"{dashboard}/status")
    watched.drawn(rows=2)
    assert watched.faults == []
