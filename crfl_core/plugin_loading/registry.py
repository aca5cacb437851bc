"""Discovery of plugins through entry points: isolated, listed, and loud only when a config names a broken one."""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.metadata import Distribution, EntryPoint, distribution, distributions, packages_distributions
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from crfl_core.errors import PluginError, closest, reason
from crfl_core.plugin_api import KINDS, LOCAL
from crfl_core.plugin_api.command import Command

if TYPE_CHECKING:
    from crfl_core.plugin_api.base import Plugin

DISABLE = "CRFL_DISABLE_PLUGINS"
ALLOW = "CRFL_ALLOW_PLUGINS"
"""Whose code run directories of other people may run here."""

OWN = "crfl"
"""The distribution that this code belongs to. Whoever runs it trusts it, so no allow-list needs to name it."""

GROUPS = {kind.group: name for name, kind in KINDS.items()}
"""The kind of every entry-point group."""

IMPORTING = threading.RLock()
"""Standard output belongs to the process: two threads that redirect it at once would never give it back."""

ListedStatus = Literal["ok", "failed", "conflict", "blocked"]


@dataclass(frozen=True)
class FoundPlugin:
    """A plugin that some distribution declares, imported or not."""

    kind: str
    name: str
    distribution: str
    version: str
    source: EntryPoint | type[Plugin]

    @property
    def origin(self) -> str:
        """Distribution and version, as errors name them."""
        return f"{self.distribution} {self.version}".strip()

    @property
    def full_name(self) -> str:
        """Kind, name, distribution and version, as errors begin."""
        return f"{self.kind} {self.name!r} of {self.origin}"


@dataclass(frozen=True)
class PluginListing:
    """One line of `crfl plugins`."""

    kind: str
    name: str
    distribution: str
    version: str
    status: ListedStatus
    reason: str
    summary: str
    hooks: tuple[str, ...]


class Declared(NamedTuple):
    """The entry points of all distributions, with name and version, and what is no plugin though it should be."""

    points: list[tuple[str, str, EntryPoint]]
    broken: list[PluginListing]


class Registry:
    """The plugins that are installed, and classes that Python code adds under names of its own.

    LenientRegistry entry points imports nothing. A class is imported when a config names it, or for a full listing.
    """

    def __init__(self, local: Mapping[str, type[Plugin]] | None = None) -> None:
        self._local = dict(local or {})
        self._allow: Sequence[str] | None = None
        self._made_by_others: Path | None = None
        self._loaded: dict[tuple[str, str, str], type[Plugin]] = {}

    @cached_property
    def found(self) -> dict[str, dict[str, list[FoundPlugin]]]:
        """Everything declared, by kind and name; more than one entry under a name is a conflict."""
        table: dict[str, dict[str, list[FoundPlugin]]] = {kind: {} for kind in KINDS}
        for owner, version, point in self._declared.points:
            kind = GROUPS[point.group]
            table[kind].setdefault(point.name, []).append(FoundPlugin(kind, point.name, owner, version, point))
        for name, plugin in self._local.items():
            for kind in (kind for kind, described in KINDS.items() if described.includes(plugin)):
                table[kind][name] = [FoundPlugin(kind, name, LOCAL, "", plugin)]
        return table

    @cached_property
    def _declared(self) -> Declared:
        return read_entry_points()

    def with_allow_list(self, entries: Sequence[str] | None) -> Registry:
        """The same plugins, of which only those listed, as distribution or `distribution:name`, can be loaded.

        What is part of crfl or of this process can always be. None lists everything.
        """
        found = self.found  # read once, for both
        allowing = Registry(self._local)
        allowing.found = found
        allowing._declared = self._declared
        allowing._loaded = self._loaded
        allowing._allow = entries
        allowing._made_by_others = self._made_by_others
        return allowing

    def for_foreign_run(self, directory: Path) -> Registry:
        """The same plugins for a run that was not made here: no code but what $CRFL_ALLOW_PLUGINS lists."""
        careful = self.with_allow_list(self._allow)
        careful._made_by_others = directory
        return careful

    def _refused(self, name: str, is_on: Callable[[Sequence[str]], bool]) -> str:
        """What keeps code from running that is called `name` on lists, and the remedy; empty if nothing does."""
        if self._allow is not None and not is_on(self._allow):
            return f"plugins.allow, which does not list it: if you trust it, add {name!r} there"
        if self._made_by_others is not None and not is_on(readers_list()):
            return (
                f"the origin of {self._made_by_others}, which was not made here: read its config.toml, then give "
                f"--trust, or put {name!r} into {ALLOW}"
            )
        return ""

    def is_usable(self, found: FoundPlugin) -> bool:
        """Whether a plugin may be imported: neither the environment nor an allow-list is against it."""
        return not blocked(found) and self._allows(found)

    def _allows(self, found: FoundPlugin) -> bool:
        return found.distribution in (OWN, LOCAL) or not self._refused_plugin(found)

    def _refused_plugin(self, found: FoundPlugin) -> str:
        return self._refused(found.distribution, lambda entries: is_listed(found, entries))

    def names(self, kind: str) -> tuple[str, ...]:
        """The names that a config may use for a kind, without those that are blocked."""
        return tuple(sorted(name for name, all_of in self.found[kind].items() if any(map(self.is_usable, all_of))))

    def find(self, kind: str, name: str) -> FoundPlugin:
        """The one plugin that a name, or `distribution:name`, stands for."""
        distribution, _, bare = name.rpartition(":")
        candidates = [
            found
            for found in self.found[kind].get(bare, [])
            if not distribution or normalise_name(found.distribution) == normalise_name(distribution)
        ]
        if not candidates:
            raise PluginError(self._unknown(kind, name))
        usable = [found for found in candidates if self.is_usable(found)]
        if not usable:
            raise PluginError(f"{kind} {name!r} of {candidates[0].origin} is blocked by {self._refusal(candidates[0])}")
        if len(usable) > 1:
            origins = " and ".join(found.origin for found in usable)
            choices = " or ".join(repr(f"{found.distribution}:{bare}") for found in usable)
            raise PluginError(f"{kind} {name!r} is declared by {origins}: write {choices} to choose one")
        return usable[0]

    def load(self, kind: str, name: str) -> type[Plugin]:
        """The class that a name stands for; imports it if need be. Raises `PluginError`."""
        return self._import(self.find(kind, name))

    def command(self, name: str) -> Command:
        """The command that a name stands for; imports what is behind it. Raises `PluginError`."""
        return command_of(self.find("command", name))

    def name_of(self, kind: str, plugin: type[Plugin]) -> str:
        """The name under which a class is registered."""
        target = f"{plugin.__module__}:{plugin.__qualname__}"
        for name, candidates in self.found[kind].items():
            for found in candidates:
                value = found.source if isinstance(found.source, type) else found.source.value
                if value in (plugin, target):
                    return name if len(candidates) == 1 else f"{found.distribution}:{name}"
        raise PluginError(
            f"{plugin.__qualname__} is no registered {kind}: name it with plugins={{'my-name': {plugin.__name__}}}"
        )

    def origin(self, kind: str, name: str) -> str:
        """Distribution and version that a name stands for. Raises `PluginError`."""
        return self.find(kind, name).origin

    def import_refusal(self, path: str) -> str:
        """Why code that an option names, "package.module:name", must not be imported; empty if it may be."""
        module = path.rpartition(":")[0]
        top = module.partition(".")[0]
        declaring = {owner for owner, _, point in self._declared.points if point.module.partition(".")[0] == top}
        owners = sorted({*declaring, *packages_distributions().get(top, ())})
        owners = [] if module.endswith(".py") else owners  # a file is nobody's, whatever it is called
        found = [FoundPlugin("module", module, owner, "", EntryPoint(module, module, "")) for owner in owners]
        if any(map(self.is_usable, found)):
            return ""
        named = [] if module.endswith(".py") else [top]
        by = self._refusal(found[0]) if found else self._refused(top, lambda entries: not {*named}.isdisjoint(entries))
        return f"the code {path!r} is blocked by {by}" if by else ""

    def listing(self) -> tuple[PluginListing, ...]:
        """Every plugin with its state. Imports all of them, each in isolation."""
        return tuple(
            self._listed(found, conflict=len(candidates) > 1)
            for kind in KINDS
            for _, candidates in sorted(self.found[kind].items())
            for found in candidates
        ) + tuple(self._declared.broken)

    def _listed(self, found: FoundPlugin, *, conflict: bool) -> PluginListing:

        status: ListedStatus = "ok"
        reason = ""
        summary = ""
        hooks: tuple[str, ...] = ()
        if not self.is_usable(found):
            status = "blocked"
            reason = self._refusal(found)
        else:
            try:
                summary, hooks = self._described(found)
            except PluginError as error:
                status = "failed"
                reason = str(error)
            else:
                if conflict:
                    status = "conflict"
                    reason = f"write '{found.distribution}:{found.name}' to choose this one"
        return PluginListing(found.kind, found.name, found.distribution, found.version, status, reason, summary, hooks)

    def _described(self, found: FoundPlugin) -> tuple[str, tuple[str, ...]]:
        if found.kind == "command":
            return command_of(found).summary, ()
        from crfl_core.plugin_loading.class_checks import hook_names

        plugin = self._import(found)
        return plugin_summary(plugin), hook_names(plugin)

    def _import(self, found: FoundPlugin) -> type[Plugin]:
        key = (found.kind, found.distribution, found.name)
        if key not in self._loaded:
            from crfl_core.plugin_loading.class_checks import check_class

            base = KINDS[found.kind].base
            self._loaded[key] = check_class(found.full_name, import_plugin(found), base, found.distribution)
        return self._loaded[key]

    def _refusal(self, found: FoundPlugin) -> str:
        if blocked(found):
            return f"{DISABLE}={os.environ[DISABLE]}"
        return self._refused_plugin(found)

    def _unknown(self, kind: str, name: str) -> str:
        names = self.names(kind)
        hint = closest(name.rpartition(":")[2], names)
        where = [other for other in KINDS if name in self.found[other]]
        also = f"{name!r} is the name of another kind, {where[0]}; " if where else ""
        lost = [line for line in self._declared.broken if line.name == name.rpartition(":")[2]]
        also += "".join(f"{line.distribution} {line.version} declares it, but {line.reason}; " for line in lost)
        installed = ", ".join(names) or "none"
        return " ".join(f"there is no {kind} {name!r}: {hint} {also}installed: {installed}".split())


def read_entry_points() -> Declared:
    """Read the entry points of every distribution, each in isolation.

    The standard library's own `entry_points()` raises as soon as one distribution has broken metadata.
    """
    result = Declared([], [])
    seen = set()
    for candidate in distributions():
        try:
            if not any(is_crfl_group(point.group) for point in candidate.entry_points):
                continue
            name = candidate.name
            if normalise_name(name) not in seen:
                seen.add(normalise_name(name))
                first = distribution(name)  # of two with one name, the first on the path counts
                sort_entry_points(result, name, first.version, first.entry_points)
        except Exception as error:
            problem = f"its entry points cannot be read: {reason(error)}"
            result.broken.append(PluginListing("unknown", "", *identity(candidate), "failed", problem, "", ()))
    return result


def sort_entry_points(result: Declared, name: str, version: str, points: Iterable[EntryPoint]) -> None:
    """Sort the entry points of a distribution into plugins, strangers, and those that nobody would find."""
    for point in points:
        if point.group in GROUPS:
            result.points.append((name, version, point))
        elif is_crfl_group(point.group):
            hint = (
                f"did you mean {near!r}?" if (near := closest_group(point.group)) else f"groups are {', '.join(GROUPS)}"
            )
            problem = f"there is no entry-point group {point.group!r}: {hint}"
            result.broken.append(PluginListing("unknown", point.name, name, version, "failed", problem, "", ()))


def is_crfl_group(group: str) -> bool:
    """Whether a group of entry points is ours, or was meant to be."""
    return group.startswith(f"{OWN}.") or bool(closest_group(group))


@cache
def closest_group(group: str) -> str:
    """The group of ours whose name is almost the same, or an empty string."""
    return next(iter(difflib.get_close_matches(group, GROUPS, n=1, cutoff=0.85)), "")


def identity(candidate: Distribution) -> tuple[str, str]:
    """Name and version of a distribution, as far as its metadata can be read."""
    try:
        return candidate.name or "unknown", candidate.version or ""
    except Exception:
        return "unknown", ""


def import_plugin(found: FoundPlugin) -> object:
    """The object an entry point names. Whatever goes wrong inside is the plugin's failure, not ours."""
    if isinstance(found.source, type):
        return found.source
    try:
        # What a plugin prints must not get into our own output, which may be JSON.
        with IMPORTING, contextlib.redirect_stdout(sys.stderr):
            return found.source.load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        hint = moved_name(error) if isinstance(error, ImportError) else ""
        raise PluginError(f"{found.full_name} cannot be imported: {reason(error)}{hint}") from error


def command_of(found: FoundPlugin) -> Command:
    """What is behind the entry point of a command; whether it can be used as one shows when it is."""
    target = import_plugin(found)
    return Command(found.name, target, found.origin, None if isinstance(found.source, type) else found.source)


def moved_name(error: ImportError) -> str:
    """Where a name went that a plugin wants to import from `crfl_core`: Python drops that part of the message."""
    import crfl_core

    name = re.match(r"cannot import name '(\w+)' from 'crfl_core'", str(error))
    try:
        return "" if name is None else f": {getattr(crfl_core, name[1])}"
    except AttributeError as moved:
        return f": {moved}"


def readers_list() -> list[str]:
    """Whose code the person at this machine allows to run directories of others."""
    return [entry.strip() for entry in os.environ.get(ALLOW, "").split(",") if entry.strip()]


def blocked(found: FoundPlugin) -> bool:
    """Whether the environment blocks a plugin: by name, distribution, or `distribution:name`."""
    entries = [entry.strip() for entry in os.environ.get(DISABLE, "").split(",")]
    return is_listed(found, entries) or normalise_name(found.name) in map(normalise_name, entries)


def is_listed(found: FoundPlugin, entries: Iterable[str]) -> bool:
    """Whether a plugin is one of those that are written as distribution or `distribution:name`."""
    names = (found.distribution, f"{found.distribution}:{found.name}")
    return not set(map(normalise_name, names)).isdisjoint(map(normalise_name, entries))


def normalise_name(name: str) -> str:
    """One spelling of a distribution's name: case and separators make no difference."""
    return name.replace("_", "-").replace(".", "-").lower()


def plugin_summary(plugin: type[Plugin]) -> str:
    """The summary of a plugin: the first line of its own docstring."""
    return (plugin.__doc__ or "").strip().partition("\n")[0]
