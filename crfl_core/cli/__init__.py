"""The command line. Each command is one file, which imports what it needs when it is called."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import NoReturn, TextIO

from crfl_core.errors import CrflError, CrflWarning, PluginError
from crfl_core.live_line import passing as passing
from crfl_core.printable_text import printable

EXIT_BAD_INPUT = 2
EXIT_REFUSED = 3
"""The command did its work, and every certificate is refused."""
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143
LINE_LIMIT = 2_000
"""Of longer lines of a message only the beginning and the end are shown: a log should not drown in them."""


class Terminated(KeyboardInterrupt):
    """Raised on SIGTERM and SIGHUP; handled like Ctrl-C."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line.

    Expected errors are printed as one sentence and end with exit status 2.
    """
    warnings.showwarning = show_warning
    try:
        with handle_signals():
            from crfl_core.cli.app import app

            app(args=None if arguments is None else list(arguments), prog_name="crfl")
    except KeyboardInterrupt as stop:
        print_message("interrupted: nothing was written yet")
        sys.exit(exit_status(stop))
    except SystemExit as end:
        # Typer ends with 130 and says nothing, whether it was Ctrl-C or SIGTERM.
        if isinstance(interrupt := getattr(end.__context__, "__cause__", None), KeyboardInterrupt):
            print_message("interrupted")
            sys.exit(exit_status(interrupt))
        raise
    except (CrflError, OSError, MemoryError) as error:
        if os.environ.get("CRFL_DEBUG"):
            raise
        print_message("\n".join([f"error: {error_text(error)}", *getattr(error, "__notes__", ()), *debug_hint(error)]))
        sys.exit(EXIT_BAD_INPUT)


@contextlib.contextmanager
def handle_signals() -> Iterator[None]:
    """Handle SIGTERM and SIGHUP like Ctrl-C.

    Ignored signals stay ignored, as with `nohup`.
    """

    def end(_number: int, _frame: FrameType | None) -> NoReturn:
        raise Terminated

    with contextlib.ExitStack() as stack:
        for number in (signal.SIGTERM, signal.SIGHUP):
            with contextlib.suppress(ValueError):  # not the main thread, where signals arrive
                if signal.getsignal(number) == signal.SIG_DFL:
                    stack.callback(signal.signal, number, signal.signal(number, end))
        yield


def exit_status(stop: KeyboardInterrupt) -> int:
    """Return the exit status after an interrupt."""
    return EXIT_TERMINATED if isinstance(stop, Terminated) else EXIT_INTERRUPTED


def error_text(error: CrflError | OSError | MemoryError) -> str:
    """Return the text of an error.

    For an error of the operating system, it includes the file that it is about.
    """
    if isinstance(error, CrflError):
        return str(error)
    if isinstance(error, MemoryError):
        return f"there is not enough memory: {error}: `crfl run --dry-run` says what a run needs".replace(": :", ":")
    return ": ".join(str(part) for part in (error.filename, error.strerror or error) if part)


def debug_hint(error: BaseException) -> Iterator[str]:
    """Yield how to see the traceback of a plugin's exception.

    It is an exception that the plugin did not mean to raise.
    """
    if isinstance(error, PluginError) and error.__cause__ is not None and not isinstance(error.__cause__, CrflError):
        yield "CRFL_DEBUG=1 shows the traceback"


def echo(text: object = "", *, err: bool = False, nl: bool = True) -> None:
    """Write a text to stdout or stderr.

    The text may be encoded. Every control character is escaped.
    """
    import typer

    typer.echo(printable(text.decode() if isinstance(text, bytes) else str(text)), err=err, nl=nl)


def print_message(text: str) -> None:
    """Print a message to stderr, if it is still open."""
    passing("")
    half = LINE_LIMIT // 2
    shown = printable(text).splitlines()
    lines = (line if len(line) <= LINE_LIMIT else f"{line[:half]} ... {line[-half:]}" for line in shown)
    with contextlib.suppress(OSError, ValueError):  # the terminal went away, or stderr is closed
        sys.stderr.write("\n".join(lines) + "\n")
        sys.stderr.flush()


def show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print warnings of this package as one sentence, others as Python does."""
    stream = file or sys.stderr
    if issubclass(category, CrflWarning):
        stream.write(printable(f"warning: {message}\n"))
    else:
        stream.write(printable(warnings.formatwarning(message, category, filename, lineno, line)))
