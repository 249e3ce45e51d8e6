"""HTML is built so that text cannot become markup."""

from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from dask_marsched.monitoring.html import Markup, element, table


class Reader(HTMLParser):
    """Reads text and elements back, as a browser does."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.text: list[str] = []
        self.open: list[str] = []
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.elements.append(tag)
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


# NUL and carriage returns are not characters of a document
WORDS = st.text(st.characters(exclude_characters="\0\r", exclude_categories=("Cs",)), min_size=1)


@given(WORDS, WORDS)
def test_text_is_escaped(content, value):
    read = Reader(element("p", content, attributes={"title": value}))
    assert read.elements == ["p"]
    assert "".join(read.text) == content
    assert read.open == []


@given(st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=3))
def test_every_cell_of_a_table_is_there(rows):
    read = Reader(table(("a", "b"), rows, numbers=[1]))
    assert read.elements.count("td") == 2 * len(rows)
    assert [word for row in rows for word in row] == read.text[2:]


def test_markup_is_not_escaped_again():
    assert element("b", element("i", "<"), Markup("&amp;")) == "<b><i>&lt;</i>&amp;</b>"


def test_attributes_without_a_value_are_omitted():
    assert element("td", "x", attributes={"class": None, "id": 3}) == '<td id="3">x</td>'
