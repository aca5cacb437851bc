"""Public names on their way out: they go on working for a while, and warn.

docs/writing-plugins/api-contract.md says for how long.
"""

from __future__ import annotations

import warnings
from typing import NamedTuple

from crfl_core.errors import CrflDeprecationWarning


class Renamed(NamedTuple):
    """The name to use instead of an old one, and the release that will not have the old one any more."""

    name: str
    gone_in: str


RENAMED: dict[str, Renamed] = {}
"""Old public names of `crfl_core`."""


def current_name(name: str) -> str:
    """The name that stands for a public name today; warns the code that asked if this is another one."""
    if name not in RENAMED:
        return name
    new = RENAMED[name]
    message = f"crfl_core.{name} is called crfl_core.{new.name} now; crfl {new.gone_in} drops the old name"
    warnings.warn(message, CrflDeprecationWarning, stacklevel=3)
    return new.name
