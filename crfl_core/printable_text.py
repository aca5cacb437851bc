"""Text of other people on a terminal: characters that a terminal obeys are shown, not sent."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.measure import Measurement
    from rich.segment import Segment

UNPRINTABLE_CATEGORIES = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
"""Unicode categories that are escaped: controls, formats such as changes of direction, surrogates, separators."""
KEPT = {"\n", "\t"}


def printable(text: str) -> str:
    r"""Escape every control character of a text as JSON does.

    Line ends and tabs stay. A run directory or a config may hold codes that move the cursor, change colours or paste
    into a shell.

    >>> print(printable("loss \x1b[2J 0.1"))
    loss \u001b[2J 0.1
    """
    return text.translate(ESCAPES)


def escape_character(character: str) -> str:
    """Return a character, escaped if a terminal might obey it."""
    if character in KEPT or unicodedata.category(character) not in UNPRINTABLE_CATEGORIES:
        return character
    return json.dumps(character)[1:-1] if ord(character) > 0xFFFF else f"\\u{ord(character):04x}"


class Escapes(dict[int, str]):
    """Table for `str.translate`, which grows by every character that is looked up."""

    def __missing__(self, code: int) -> str:
        self[code] = escape_character(chr(code))
        return self[code]


ESCAPES = Escapes()


class PrintableOutput:
    """Render hook for a console of rich: the output with every control character of its texts escaped.

    As a render hook, `console.push_render_hook(PrintableOutput())`, it does so with everything that is printed.
    """

    def __init__(self, renderable: Any = "") -> None:
        self.renderable = renderable

    def process_renderables(self, renderables: list[Any]) -> list[Any]:
        """Wrap everything that is printed at once."""
        return [PrintableOutput(renderable) for renderable in renderables]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        from rich.segment import Segment

        for segment in console.render(self.renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        from rich.measure import Measurement

        return Measurement.get(console, options, self.renderable)
