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

from collections.abc import Iterator
from contextlib import contextmanager

from crfl_core.files.errors import ConfigError as ConfigError
from crfl_core.files.errors import CrflError as CrflError
from crfl_core.files.errors import CrflWarning as CrflWarning
from crfl_core.files.errors import DataError as DataError
from crfl_core.files.errors import StoreError as StoreError
from crfl_core.files.errors import closest as closest


class OptionError(CrflError):
    """A plugin's option does not fit the run it is used in.

    Plugins raise it with the option's name; the core turns it into a `ConfigError` that adds the table in
    which the plugin was configured.

    >>> str(OptionError("trim", "2 x trim must be below the 4 clients of a round, found trim = 2"))
    'trim: 2 x trim must be below the 4 clients of a round, found trim = 2'
    """

    def __init__(self, option: str, message: str) -> None:
        super().__init__(f"{option}: {message}")
        self.option = option
        self.message = message


class PluginError(CrflError):
    """A plugin is unknown, blocked, ambiguous or cannot be loaded."""


class PluginFailure(PluginError):
    """A plugin raised or broke its contract while a run was using it."""


class RunError(CrflError):
    """Training cannot continue."""


UNEXPECTED = (Exception, SystemExit)
"""What a plugin may raise though it should not. Ctrl-C is not its doing."""


@contextmanager
def failures_named(what: str) -> Iterator[None]:
    """Turn whatever a plugin raises unexpectedly into a `PluginFailure` that says what failed.

    >>> with failures_named("aggregator 'mine' failed"):
    ...     raise ValueError("no clients")
    Traceback (most recent call last):
    crfl_core.errors.PluginFailure: aggregator 'mine' failed: ValueError: no clients
    """
    try:
        yield
    except CrflError:
        raise
    except UNEXPECTED as error:
        raise PluginFailure(f"{what}: {reason(error)}") from error


def reason(error: BaseException) -> str:
    """What a plugin raised, in words.

    >>> reason(KeyError("f")), reason(SystemExit(7))
    ("KeyError: 'f'", 'SystemExit: 7: a plugin must not end the process')
    """
    ends = ": a plugin must not end the process" if isinstance(error, SystemExit) else ""
    return f"{type(error).__name__}: {error}{ends}"
