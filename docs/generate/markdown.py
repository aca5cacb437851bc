"""Write Markdown: tables, anchors, code blocks and escaped prose."""

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
    """Escape text for a cell of a table."""
    return change_outside_code(text or "", lambda piece: piece.replace("<", "&lt;")).replace("|", "\\|")


def code(text: str) -> str:
    """Format source as inline code, also for a table."""
    return f"`{text}`".replace("|", "\\|")


def escape_prose(text: str) -> str:
    r"""Escape a docstring, except `code`, *emphasis* and names of pages.

    >>> escape_prose("w~_{t-1} is `w_t * 2`, u_i < 1, see docs/concepts.md#ledger")
    'w\\~\\_{t-1} is `w_t * 2`, u_i \\< 1, see [docs/concepts.md](../concepts.md#ledger)'
    """
    return change_outside_code(
        text, lambda piece: link_pages(SPECIAL.sub(lambda found: found[1] or f"\\{found[2]}", piece))
    )


def prose_cell(text: str) -> str:
    """Escape a docstring for a cell of a table, on one line."""
    return escape_prose(" ".join(text.split())).replace("|", "\\|")


def change_outside_code(text: str, change: Callable[[str], str]) -> str:
    """Apply a change to text, except to `code`."""
    return "".join(piece if number % 2 else change(piece) for number, piece in enumerate(CODE.split(text)))


def link_pages(text: str) -> str:
    """Link the pages of the documentation that a text names."""
    return PAGE.sub(lambda found: f"[docs/{found[1].partition('#')[0]}](../{found[1]})", text)


def anchor(heading: str) -> str:
    """Return the anchor of a heading.

    >>> anchor("`ClientColumns.of_round`")
    'clientcolumnsof_round'
    """
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def code_block(language: str, text: str) -> str:
    """Format source as a fenced block."""
    return f"```{language}\n{text.rstrip()}\n```"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format rows of Markdown as a table, without empty columns."""
    content = [tuple(row) for row in rows]
    kept = [position for position in range(len(columns)) if any(row[position] for row in content)]
    lines = [[columns[position] for position in kept], ["---"] * len(kept)]
    lines += [[row[position] for position in kept] for row in content]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def wrap(text: str) -> str:
    """Wrap a paragraph, with links and code in one piece."""
    whole = WHOLE.sub(lambda found: found[0].replace(" ", "\0"), text)
    return textwrap.fill(whole, WIDTH, break_long_words=False, break_on_hyphens=False).replace("\0", " ")
