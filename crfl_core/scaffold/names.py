"""The names of a new plugin, its class, module and distribution, all derived from one and checked together."""

from __future__ import annotations

import keyword
import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec

from crfl_core.errors import ScaffoldError
from crfl_core.kinds import KINDS
from crfl_core.plugins import Registry

PREFIX = "crfl-"
NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
STAGE = "stage"
KINDS_OF_PACKAGES = ("aggregator", STAGE, *(kind for kind in KINDS if kind != "aggregator"))
"""What can be written: every kind of plugin, and stages, which are found among the aggregators."""


@dataclass(frozen=True)
class Names:
    """What a plugin is called: `trimmed-mean` in configs, `TrimmedMean` in Python, `crfl-trimmed-mean` for pip."""

    kind: str
    plugin: str

    @property
    def found_as(self) -> str:
        """The kind under which it is discovered."""
        return "aggregator" if self.kind == STAGE else self.kind

    @property
    def class_name(self) -> str:
        """The plugin's name in capitals.

        >>> Names("aggregator", "trimmed-mean").class_name
        'TrimmedMean'
        """
        return "".join(part.capitalize() for part in self.plugin.split("-"))

    @property
    def distribution(self) -> str:
        """What pip installs.

        >>> Names("aggregator", "trimmed-mean").distribution, Names("aggregator", "crfl-mean").distribution
        ('crfl-trimmed-mean', 'crfl-mean')
        """
        return PREFIX + self.plugin.removeprefix(PREFIX)

    @property
    def module(self) -> str:
        """What Python imports."""
        return self.distribution.replace("-", "_")

    def check(self) -> None:
        """Raise `ScaffoldError` if the names cannot be used, or belong to something that is installed."""
        if self.kind not in KINDS_OF_PACKAGES:
            raise ScaffoldError(f"there is no kind of plugin {self.kind!r}: there are {', '.join(KINDS_OF_PACKAGES)}")
        if not NAME.fullmatch(self.plugin):
            raise ScaffoldError(
                f"{self.plugin!r} is no name for a plugin: use lower-case words of letters and digits with '-' between "
                "them, such as trimmed-mean"
            )
        if keyword.iskeyword(self.class_name):
            raise ScaffoldError(f"{self.plugin!r} would give the class {self.class_name}, a word of Python itself")
        if find_spec(self.module) is not None:
            raise ScaffoldError(f"{self.plugin!r} would hide the installed module {self.module}: choose another name")
        try:
            found = distribution(self.distribution)
        except PackageNotFoundError:
            return
        raise ScaffoldError(f"{found.name} {found.version} is already installed: choose another name")

    def rivals(self, registry: Registry) -> tuple[str, ...]:
        """Distributions with their versions that already have a plugin of this kind and name."""
        return tuple(found.origin for found in registry.found[self.found_as].get(self.plugin, ()))
