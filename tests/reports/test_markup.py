"""Whatever a run holds, it stays text on a page."""

from __future__ import annotations

import json
from html.parser import HTMLParser

from crfl_reports.pages.markup import data_block, element, html, join_parts, table
from hypothesis import given
from hypothesis import strategies as st


class Reader(HTMLParser):
    """What a browser would find in some markup."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def read(markup: str) -> Reader:
    reader = Reader()
    reader.feed(markup)
    reader.close()
    return reader


@given(st.text())
def test_text_and_attributes_come_back_as_they_were(text: str) -> None:
    text = text.replace("\r", "").replace("\0", "")
    found = read(element("p", text, title=text))
    assert found.tags == ["p"]
    assert found.text == text


@given(st.text())
def test_data_never_end_their_block(text: str) -> None:
    block = data_block("data", {"name": text})
    content = block.removeprefix('<script type="application/json" id="data">').removesuffix("</script>")
    assert "<" not in content
    assert ">" not in content
    assert json.loads(content) == {"name": text}


def test_parts_are_escaped_once() -> None:
    inner = element("b", "1 < 2")
    assert html(join_parts(["&", inner])) == "&amp;<b>1 &lt; 2</b>"


def test_a_table_has_headings_and_a_caption() -> None:
    found = table(("name", "value"), [["a", "1"]], "Two things")
    assert '<caption class="hidden">Two things</caption>' in found
    assert '<th scope="row">a</th>' in found
