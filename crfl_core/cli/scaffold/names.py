"""The names of a new plugin, its class, module and distribution, all derived from one and checked together."""

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
"""What can be written: every kind of plugin, and stages, which are found among the aggregators."""


class ScaffoldError(CrflError):
    """A new package cannot be written: its name cannot be used, or something is in the way."""


@dataclass(frozen=True)
class PluginNames:
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
    def function_name(self) -> str:
        """The plugin's name as that of a function.

        >>> Names("command", "certified-share").function_name
        'certified_share'
        """
        return self.plugin.replace("-", "_")

    @property
    def target(self) -> str:
        """What the entry point names: the function of a command, the class of any other plugin."""
        return self.function_name if self.kind == COMMAND else self.class_name

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
        self.check_name()
        if find_spec(self.module) is not None:
            raise ScaffoldError(f"{self.plugin!r} would hide the installed module {self.module}: choose another name")
        try:
            found = distribution(self.distribution)
        except PackageNotFoundError:
            return
        raise ScaffoldError(f"{found.name} {found.version} is already installed: choose another name")

    def check_name(self) -> None:
        """Raise `ScaffoldError` if nothing could be called this."""
        if self.kind not in KINDS_OF_PACKAGES:
            raise ScaffoldError(f"there is no kind of plugin {self.kind!r}: there are {', '.join(KINDS_OF_PACKAGES)}")
        if not NAME.fullmatch(self.plugin):
            raise ScaffoldError(
                f"{self.plugin!r} is no name for a plugin: use lower-case words of letters and digits with '-' between "
                "them, such as trimmed-mean"
            )
        for word in (self.target, self.function_name):
            if keyword.iskeyword(word):
                raise ScaffoldError(f"{self.plugin!r} would be called {word}, a word of Python itself")
        if self.kind == COMMAND and self.plugin in CORE_COMMANDS:
            raise ScaffoldError(f"{self.plugin!r} is a command of crfl itself: choose another name")

    def rivals(self, registry: Registry) -> tuple[str, ...]:
        """Distributions with their versions that already have a plugin of this kind and name."""
        return tuple(found.origin for found in registry.found[self.found_as].get(self.plugin, ()))
