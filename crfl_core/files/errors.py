"""Errors about files that people write or fetch, and the base of all errors of this project."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class CrflError(Exception):
    """Base of all expected errors: a sentence that says what is wrong, where, and what would be right."""


class ConfigError(CrflError):
    """A config file, an override or a combination of settings is wrong.

    `key` is the dotted path of the setting, if there is a single one; whoever knows where it was written adds that.
    """

    def __init__(self, message: str, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key


class DataError(CrflError):
    """A data file or array cannot be used as it is."""


class StoreError(CrflError):
    """A run directory is missing, busy, damaged, or would be overwritten."""


class CrflWarning(UserWarning):
    """Something a person should know, while the run continues."""


def closest(name: str, known: Iterable[str]) -> str:
    """A phrase that offers the known names nearest to a misspelt one, or an empty string.

    >>> closest("fedagv", ["fedavg", "krum"])
    "did you mean 'fedavg'?"
    >>> closest("zzz", ["fedavg", "krum"])
    ''
    """
    matches = difflib.get_close_matches(name, list(known), n=3)
    return f"did you mean {' or '.join(map(repr, matches))}?" if matches else ""
