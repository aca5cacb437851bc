"""Markdown as forges render it: tables, anchors, fenced blocks, and prose that is left alone."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
WIDTH = 120
CODE = re.compile(r"(`[^`]+`)")
SPECIAL = re.compile(r"(\*\w[\w -]*\w\*)|([*~<\\]|(?<!\w)_|_(?!\w))")
PAGE = re.compile(r"docs/([\w-]+\.md(?:#[\w-]+)?)")
WHOLE = re.compile(r"\[[^\]]*\]\([^)]*\)|`[^`]*`")


def cell(text: str | None) -> str:
    """Text that Markdown leaves alone inside a table."""
    return outside_code(text or "", lambda piece: piece.replace("<", "&lt;")).replace("|", "\\|")


def code(text: str) -> str:
    """A piece of source, also inside a table."""
    return f"`{text}`".replace("|", "\\|")


def prose(text: str) -> str:
    r"""Text of a docstring whose symbols mean themselves, apart from `code`, *emphasis* and names of pages.

    >>> prose("w~_{t-1} is `w_t * 2`, u_i < 1, see docs/concepts.md#ledger")
    'w\\~\\_{t-1} is `w_t * 2`, u_i \\< 1, see [docs/concepts.md](../concepts.md#ledger)'
    """
    return outside_code(text, lambda piece: linked(SPECIAL.sub(lambda found: found[1] or f"\\{found[2]}", piece)))


def prose_cell(text: str) -> str:
    """Text of a docstring inside a table, on one line."""
    return prose(" ".join(text.split())).replace("|", "\\|")


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """Text with a change to what is not `code`."""
    return "".join(piece if number % 2 else change(piece) for number, piece in enumerate(CODE.split(text)))


def linked(text: str) -> str:
    """Text whose references to pages of the documentation are links from a page of the reference."""
    return PAGE.sub(lambda found: f"[docs/{found[1].partition('#')[0]}](../{found[1]})", text)


def anchor(heading: str) -> str:
    """The anchor of a heading.

    >>> anchor("`ClientColumns.of_round`")
    'clientcolumnsof_round'
    """
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def fenced(language: str, text: str) -> str:
    """A block of code."""
    return f"```{language}\n{text.rstrip()}\n```"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table without the columns that are empty in every row; its cells are Markdown already."""
    content = [tuple(row) for row in rows]
    kept = [position for position in range(len(columns)) if any(row[position] for row in content)]
    lines = [[columns[position] for position in kept], ["---"] * len(kept)]
    lines += [[row[position] for position in kept] for row in content]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def wrapped(text: str) -> str:
    """A paragraph in lines of the house's width, with links and code in one piece."""
    whole = WHOLE.sub(lambda found: found[0].replace(" ", "\0"), text)
    return textwrap.fill(whole, WIDTH, break_long_words=False, break_on_hyphens=False).replace("\0", " ")
