"""Every error that this package raises on purpose.

CrflError                 the message is written for the person who will read it; the CLI exits with 2
├── ConfigError           a key of a config file or an override is wrong
├── OptionError           a plugin's option does not fit the run; the core adds where it was written
├── DataError             a data file or array cannot be used
├── PluginError           a plugin is unknown, blocked, ambiguous or cannot be loaded
│   └── PluginFailure     a plugin raised, or returned something that breaks its contract, during a run
├── RunError              training cannot continue
└── StoreError            a run directory is missing, busy, damaged or would be overwritten
"""

from __future__ import annotations

import difflib
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

LONGEST_QUOTE = 200
"""Characters of a foreign error message that one of ours quotes."""


class CrflError(Exception):
    """Base of all expected errors: a sentence that says what is wrong, where, and what would be right."""


class ConfigError(CrflError):
    """Error in a config file, an override or a combination of settings.

    `key` is the dotted path of the setting, if there is a single one. The reader of the config adds where that key was
    written.
    """

    def __init__(self, message: str, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key


class OptionError(CrflError):
    """Error in a plugin's option that does not fit the run.

    Plugins raise it with the option's name; the core turns it into a `ConfigError` that adds the table in
    which the plugin was configured.

    >>> str(OptionError("trim", "2 x trim must be below the 4 clients of a round, found trim = 2"))
    'trim: 2 x trim must be below the 4 clients of a round, found trim = 2'
    """

    def __init__(self, option: str, message: str) -> None:
        super().__init__(f"{option}: {message}")
        self.option = option
        self.message = message


class DataError(CrflError):
    """Error in a data file or an array, which cannot be used as it is."""


class PluginError(CrflError):
    """Error about a plugin that is unknown, blocked, ambiguous or cannot be loaded."""


class PluginFailure(PluginError):
    """Failure of a plugin during a run: it raised, or it broke its contract."""


class RunError(CrflError):
    """Error that ends training."""


class StoreError(CrflError):
    """Error about a run directory that is missing, busy, damaged, or would be overwritten."""


class CrflWarning(UserWarning):
    """Warning that the user should read while the run continues."""


UNEXPECTED_EXCEPTIONS = (Exception, SystemExit)
"""Exceptions of a plugin that are its failure. Ctrl-C is not among them: the user pressed it."""


@contextmanager
def wrap_failures(what: str) -> Iterator[None]:
    """Turn any unexpected exception of a plugin into a `PluginFailure`.

    `what` begins the message and says which plugin failed in which call. A `CrflError` passes unchanged.

    >>> with wrap_failures("aggregator 'mine' failed"):
    ...     raise ValueError("no clients")
    Traceback (most recent call last):
    crfl_core.errors.PluginFailure: aggregator 'mine' failed: ValueError: no clients
    """
    try:
        yield
    except CrflError:
        raise
    except UNEXPECTED_EXCEPTIONS as error:
        raise PluginFailure(f"{what}: {describe_exception(error)}") from error


def describe_exception(error: BaseException) -> str:
    """Describe an exception of a plugin.

    The text has its type, its text, and the line of the plugin that raised it.

    >>> describe_exception(KeyError("f")), describe_exception(SystemExit(7))
    ("KeyError: 'f'", 'SystemExit: 7: a plugin must not end the process')
    """
    ends = ": a plugin must not end the process" if isinstance(error, SystemExit) else ""
    place = "" if isinstance(error, CrflError) else failure_location(error)
    return f"{type(error).__name__}: {error}{ends}{f' ({place})' if place else ''}"


LIBRARIES = {
    "crfl_core",
    "pluggy",
    "pydantic",
    "click",
    "typer",
    "torch",
    "numpy",
    "contextlib",
    "functools",
    "importlib",
    "importlib_metadata",  # which loads, once imported, entry points in place of the standard library
}
"""Packages whose frames in a traceback are not those of the plugin that failed."""


def failure_location(error: BaseException) -> str:
    """Return file and line where the plugin raised an exception.

    It is the last frame of the plugin's own package in the traceback. The text is empty without such a frame.
    """
    own_package = ""
    place = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if not own_package and package not in LIBRARIES:
            own_package = package
        if own_package and package == own_package:
            place = f"{frame.f_code.co_filename}:{line}"
    return place


def suggest_names(name: str, known: Iterable[str]) -> str:
    """Return a phrase that offers the nearest known names.

    It is empty if no name resembles the misspelt one.

    >>> suggest_names("fedagv", ["fedavg", "krum"])
    "did you mean 'fedavg'?"
    >>> suggest_names("zzz", ["fedavg", "krum"])
    ''
    """
    matches = difflib.get_close_matches(name, list(known), n=3)
    return f"did you mean {' or '.join(map(repr, matches))}?" if matches else ""


def one_line(text: object) -> str:
    """Shorten a foreign error message to one line.

    It has at most `LONGEST_QUOTE` characters before the dots.

    >>> one_line("bad value\\n" + 1000 * "x")[:14]
    'bad value xxxx'
    """
    line = " ".join(str(text).split())
    return line if len(line) <= LONGEST_QUOTE else f"{line[:LONGEST_QUOTE]} ..."
