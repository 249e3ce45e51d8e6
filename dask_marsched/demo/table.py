"""The demo's table, as text for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from dask_marsched.demo.comparison import Comparison, known_quantities

COLUMNS = ("stock", "marsched", "ratio")
WIDTH = 12


def lines(comparisons: Sequence[Comparison]) -> Iterator[str]:
    """Yield the lines of the table, at most 80 characters each.

    Parameters
    ----------
    comparisons : sequence of Comparison
        One for each analysis, in the order to show them.

    Yields
    ------
    str
        A line, without the line's end.
    """
    quantities = known_quantities(comparisons)
    titles = [f"  {quantity.title}, {quantity.unit}" for quantity in quantities]
    first = max(map(len, [*titles, *(comparison.title for comparison in comparisons)])) + 1
    yield " " * first + _cells(COLUMNS)
    yield "-" * (first + WIDTH * len(COLUMNS))
    for comparison in comparisons:
        yield comparison.title
        for title, quantity in zip(titles, quantities, strict=True):
            stock = quantity.text(getattr(comparison.stock, quantity.name))
            ours = quantity.text(getattr(comparison.marsched, quantity.name))
            ratio = ratio_text(comparison.ratio(quantity.name))
            yield title.ljust(first) + _cells([stock, ours, ratio])


def ratio_text(ratio: float | None) -> str:
    """Return a ratio to stock with two digits, a dash where stock's value is 0."""
    return "-" if ratio is None else f"{ratio:.2f}"


def _cells(texts: Iterable[str]) -> str:
    return "".join(text.rjust(WIDTH) for text in texts)
