"""The line that the next one replaces: what is being done, in a terminal or below a notebook's cell."""

from __future__ import annotations

import contextlib
import shutil
import sys
from typing import TextIO

from crfl_core.printable_text import printable


def passing(text: str) -> bool:
    """Write a line that the next line replaces.

    Return whether it could be shown.

    >>> passing("training")  # the doctests run without a terminal
    False
    """
    shown = False
    with contextlib.suppress(OSError, ValueError):  # the terminal went away, or stderr is closed
        if stream := live_stream():
            width = shutil.get_terminal_size().columns - 1
            stream.write(f"\r{printable(text)[:width]:<{width}}\r")
            stream.flush()
            shown = True
    return shown


def live_stream() -> TextIO | None:
    """Return the stream that shows a passing line.

    It is a notebook's output, or a terminal. None elsewhere.
    """
    if in_notebook():
        return sys.stdout
    return sys.stderr if sys.stderr is not None and sys.stderr.isatty() else None


def in_notebook() -> bool:
    """Return whether output goes to a cell of a Jupyter notebook."""
    return type(sys.stdout).__module__ == "ipykernel.iostream"


def is_interactive() -> bool:
    """Return whether a person types Python.

    That is so in a notebook or at a prompt.
    """
    return in_notebook() or hasattr(sys, "ps1")
