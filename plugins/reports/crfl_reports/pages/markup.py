"""HTML put together from parts. Text is escaped wherever it comes in, so no text of a run becomes markup."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, NamedTuple

VOID = frozenset({"br", "col", "img", "input", "meta"})
"""Elements that have no end."""


class Html(str):
    """Markup that was made here; any other text is escaped."""

    __slots__ = ()


Part = str | Html | None


def html(part: Part) -> str:
    """Return markup as it is and escape text.

    Everything in the text that could be markup is escaped.

    >>> html("</script>"), html(element("b", "x"))
    ('&lt;/script&gt;', '<b>x</b>')
    """
    if part is None:
        return ""
    return part if isinstance(part, Html) else escape(part)


def element(tag: str, *children: Part, **attributes: str | bool | None) -> Html:
    """Build one element.

    Underscores of attributes become hyphens; None and False leave an attribute out.

    >>> element("p", "1 < 2", class_="note", aria_label='the "first"')
    '<p class="note" aria-label="the &quot;first&quot;">1 &lt; 2</p>'
    """
    written = [
        f" {name.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{escape(str(value))}"')
        for name, value in attributes.items()
        if value is not None and value is not False
    ]
    start = f"<{tag}{''.join(written)}>"
    return Html(start if tag in VOID else f"{start}{''.join(map(html, children))}</{tag}>")


def join_parts(parts: Iterable[Part]) -> Html:
    """Join several parts."""
    return Html("".join(map(html, parts)))


def table(head: Iterable[Part], rows: Iterable[Iterable[Part]], caption: str, **attributes: str) -> Html:
    """Build a table with a hidden caption.

    The first cell of a row is its heading.
    """
    heads = [element("th", cell, scope="col") for cell in head]
    body = []
    for first, *rest in rows:
        cells = [element("th", first, scope="row"), *(element("td", cell) for cell in rest)]
        body.append(element("tr", *cells))
    return element(
        "div",
        element(
            "table",
            element("caption", caption, class_="hidden"),
            element("thead", element("tr", *heads)),
            element("tbody", *body),
            **attributes,
        ),
        class_="scroll",
        tabindex="0",
        role="region",
        aria_label=caption,
    )


class Cell(NamedTuple):
    """Cell of a sortable table; `number` is what it is sorted by, if not by its text."""

    content: Part
    number: float | None = None


def sortable_table(head: Sequence[str], rows: Iterable[tuple[Sequence[Cell], bool]], caption: str) -> Html:
    """Build a table that readers can sort with the page's script.

    Each row says whether it is marked with a star. On narrow screens each row becomes a card, whose lines repeat the
    headings.
    """
    body = []
    for cells, is_marked in rows:
        built = []
        for place, (name, cell) in enumerate(zip(head, cells, strict=True)):
            star = element("span", "★ ", class_="star", title="best row") if is_marked and place == 0 else None
            number = None if cell.number is None else repr(float(cell.number))
            content = element("div", star, cell.content)
            built.append(element("td", content, data_label=name, data_number=number))
        body.append(element("tr", *built, class_="best" if is_marked else None))
    heads = [element("th", name, scope="col") for name in head]
    made = element(
        "table",
        element("caption", caption, class_="hidden"),
        element("thead", element("tr", *heads)),
        element("tbody", *body),
        class_="sortable",
    )
    return element("div", made, class_="scroll", tabindex="0", role="region", aria_label=caption)


def glossary_term(text: str, key: str) -> Html:
    """Build a term that links to its entry in the glossary.

    The page's script shows the entry as a tooltip.
    """
    return element("a", text, href=f"#{term_id(key)}", class_="term", data_term=key)


def term_id(key: str) -> str:
    """Return the anchor of a glossary entry.

    >>> term_id("taken on trust")
    'term-taken-on-trust'
    """
    return f"term-{key.replace(' ', '-')}"


def rich(parts: Iterable[str | tuple[str, str]]) -> Html:
    """Join text and terms.

    A term is a pair of a text and its key in the glossary.
    """
    return join_parts(part if isinstance(part, str) else glossary_term(*part) for part in parts)


def figure_place(name: str, title: str) -> Html:
    """Build the place of a figure that the script draws."""
    missing = element("noscript", f"{title}: drawn by a script, which is switched off here; see metrics.json.")
    return element("div", missing, id=f"figure-{name}", class_="drawn")


def data_block(identity: str, content: Any) -> Html:
    """Embed plain data for the page's script.

    No character in the data can end the block or begin another one.

    >>> data_block("data", "</script>")
    '<script type="application/json" id="data">"\\\\u003c/script\\\\u003e"</script>'
    """
    text = json.dumps(content, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Html(f'<script type="application/json" id="{escape(identity)}">{text}</script>')
