"""Names of a new plugin: its class, module and distribution, derived from one name and checked together."""

from __future__ import annotations

import keyword
import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec

from crfl_core.extend import CrflError, Registry
from crfl_core.plugin_api import KINDS
from crfl_core.plugin_api.command import CORE_COMMANDS

PREFIX = "crfl-"
NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
STAGE = "stage"
COMMAND = "command"
KINDS_OF_PACKAGES = ("aggregator", STAGE, *(kind for kind in KINDS if kind != "aggregator"))
"""Kinds that `crfl new` writes: every kind of plugin, and stages, which are declared as aggregators."""


class ScaffoldError(CrflError):
    """Error of a package that cannot be written: an unusable name, or existing files."""


@dataclass(frozen=True)
class PluginNames:
    """Names of a plugin: `trimmed-mean` in configs, `TrimmedMean` in Python, `crfl-trimmed-mean` for pip."""

    kind: str
    plugin: str

    @property
    def found_as(self) -> str:
        """Return the kind under which it is discovered."""
        return "aggregator" if self.kind == STAGE else self.kind

    @property
    def class_name(self) -> str:
        """Return the plugin's name in capitals.

        >>> PluginNames("aggregator", "trimmed-mean").class_name
        'TrimmedMean'
        """
        return "".join(part.capitalize() for part in self.plugin.split("-"))

    @property
    def function_name(self) -> str:
        """Return the plugin's name as that of a function.

        >>> PluginNames("command", "certified-share").function_name
        'certified_share'
        """
        return self.plugin.replace("-", "_")

    @property
    def target(self) -> str:
        """Return the target of the entry point.

        It is a command's function, or any other plugin's class.
        """
        return self.function_name if self.kind == COMMAND else self.class_name

    @property
    def distribution(self) -> str:
        """Return the name for pip.

        >>> PluginNames("aggregator", "trimmed-mean").distribution, PluginNames("aggregator", "crfl-mean").distribution
        ('crfl-trimmed-mean', 'crfl-mean')
        """
        return PREFIX + self.plugin.removeprefix(PREFIX)

    @property
    def module(self) -> str:
        """Return the name of the module."""
        return self.distribution.replace("-", "_")

    def check(self) -> None:
        """Raise `ScaffoldError` if the names cannot be used or are already installed."""
        self.check_name()
        if find_spec(self.module) is not None:
            raise ScaffoldError(f"{self.plugin!r} would hide the installed module {self.module}: choose another name")
        try:
            found = distribution(self.distribution)
        except PackageNotFoundError:
            return
        raise ScaffoldError(f"{found.name} {found.version} is already installed: choose another name")

    def check_name(self) -> None:
        """Raise `ScaffoldError` if the name cannot be used."""
        if self.kind not in KINDS_OF_PACKAGES:
            raise ScaffoldError(f"there is no kind of plugin {self.kind!r}: there are {', '.join(KINDS_OF_PACKAGES)}")
        if not NAME.fullmatch(self.plugin):
            raise ScaffoldError(
                f"{self.plugin!r} cannot be the name of a plugin: use lower-case words of letters and digits with '-' "
                "between them, such as trimmed-mean"
            )
        for word in (self.target, self.function_name):
            if keyword.iskeyword(word):
                raise ScaffoldError(f"{self.plugin!r} would be called {word}, a word of Python itself")
        if self.kind == COMMAND and self.plugin in CORE_COMMANDS:
            raise ScaffoldError(f"{self.plugin!r} is a command of crfl itself: choose another name")

    def rivals(self, registry: Registry) -> tuple[str, ...]:
        """Return the installed distributions with a rival plugin.

        A rival has the same kind and name.
        """
        return tuple(found.origin for found in registry.found[self.found_as].get(self.plugin, ()))
