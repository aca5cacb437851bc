"""The command line. Each command is one small file that imports what it needs when it is called."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from typing import TextIO

from crfl_interface.errors import CrflError, CrflWarning

BAD_INPUT = 2
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; what is expected to go wrong ends in one sentence and exit status 2."""
    from crfl_core.cli.app import app

    warnings.showwarning = show_warning
    try:
        app(args=None if arguments is None else list(arguments), prog_name="crfl")
    except CrflError as error:
        if os.environ.get("CRFL_DEBUG"):
            raise
        sys.stderr.write("\n".join([f"error: {error}", *getattr(error, "__notes__", ())]) + "\n")
        sys.exit(BAD_INPUT)


def show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Our own warnings as one sentence; others as Python shows them."""
    stream = file or sys.stderr
    if issubclass(category, CrflWarning):
        stream.write(f"warning: {message}\n")
    else:
        stream.write(warnings.formatwarning(message, category, filename, lineno, line))
