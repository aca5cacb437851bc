"""Registry of plugins: found through entry points, imported in isolation, refused when a config names a broken one."""

from __future__ import annotations

import contextlib
import difflib
import inspect
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.metadata import Distribution, EntryPoint, distribution, distributions, packages_distributions
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from crfl_core.errors import PluginError, describe_exception, suggest_names
from crfl_core.plugin_api import KINDS, LOCAL, OWN_DISTRIBUTION
from crfl_core.plugin_api.command import Command

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from crfl_core.plugin_api.base import Plugin
    from crfl_core.records.round import ClientUpdates, State

    WeighingFunction = Callable[[ClientUpdates], Tensor | NDArray[np.float64]]
    LocalPlugin = type[Plugin] | WeighingFunction
    """Plugin of Python code: a class, or a function that weighs updates as a `WeightedRule` does."""

KIND_OF_GROUP = {kind.group: name for name, kind in KINDS.items()}
"""The kind of plugins in every entry-point group."""

IMPORT_LOCK = threading.RLock()
"""Held while a plugin is imported: standard output belongs to the process, so only one thread may redirect it."""

ListedStatus = Literal["ok", "failed", "conflict"]


@dataclass(frozen=True)
class FoundPlugin:
    """Plugin that a distribution declares, imported or not."""

    kind: str
    name: str
    distribution: str
    version: str
    source: EntryPoint | type[Plugin]

    @property
    def origin(self) -> str:
        """Return distribution and version, as errors name them."""
        return f"{self.distribution} {self.version}".strip()

    @property
    def full_name(self) -> str:
        """Return kind, name, distribution and version, as errors begin."""
        return f"{self.kind} {self.name!r} of {self.origin}"


@dataclass(frozen=True)
class PluginListing:
    """Line of `crfl plugins`: a plugin with its status, the reason if it cannot be used, and its hooks."""

    kind: str
    name: str
    distribution: str
    version: str
    status: ListedStatus
    reason: str
    summary: str
    hooks: tuple[str, ...]


class DeclaredEntryPoints(NamedTuple):
    """Entry points of all distributions, with name and version, and those that cannot be read or have no kind."""

    points: list[tuple[str, str, EntryPoint]]
    broken: list[PluginListing]


def plugin_class(name: str, plugin: LocalPlugin) -> type[Plugin]:
    """Return the class of a plugin of Python code.

    A function becomes a `WeightedRule`. Raises `PluginError`.
    """
    from crfl_core.plugin_api.base import Plugin

    if isinstance(plugin, type) and issubclass(plugin, Plugin):
        return plugin
    if not inspect.isroutine(plugin) or not takes_one_argument(plugin):
        raise PluginError(
            f"plugins: {name!r} must be a class of a plugin, or a function that takes the updates of a round and "
            f"returns their weights, found {plugin!r}"
        )
    from crfl_core.plugin_api.aggregator import WeightedRule

    weigh: WeighingFunction = plugin

    class FunctionRule(WeightedRule):
        __doc__ = inspect.getdoc(plugin) or f"Rule that weighs updates by the function `{plugin.__name__}`."

        def weigh(self, updates: ClientUpdates, state: State) -> Tensor | NDArray[np.float64]:  # noqa: ARG002
            return weigh(updates)

    FunctionRule.__name__ = plugin.__name__
    FunctionRule.__qualname__ = plugin.__qualname__
    FunctionRule.__module__ = plugin.__module__
    return FunctionRule


def takes_one_argument(function: Callable[..., object]) -> bool:
    """Return whether a function can be called with one positional argument."""
    try:
        inspect.signature(function).bind(None)
    except (TypeError, ValueError):
        return False
    return True


class Registry:
    """The installed plugins, and classes or functions that Python code adds under names that it chooses.

    Reading entry points imports nothing. A class is imported when a config names it, or for a full listing.
    """

    def __init__(self, local: Mapping[str, LocalPlugin] | None = None) -> None:
        self._local = {name: plugin_class(name, plugin) for name, plugin in (local or {}).items()}
        self._allow: Sequence[str] | None = None
        self._run_directory: Path | None = None
        self._loaded: dict[tuple[str, str, str], type[Plugin]] = {}
        self._recorded: Mapping[tuple[str, str], str] = {}

    @cached_property
    def found(self) -> dict[str, dict[str, list[FoundPlugin]]]:
        """Return everything declared, by kind and name.

        Several entries under a name are a conflict.
        """
        table: dict[str, dict[str, list[FoundPlugin]]] = {kind: {} for kind in KINDS}
        for owner, version, point in self._declared.points:
            kind = KIND_OF_GROUP[point.group]
            table[kind].setdefault(point.name, []).append(FoundPlugin(kind, point.name, owner, version, point))
        for name, plugin in self._local.items():
            for kind, described in KINDS.items():
                if described.includes(plugin):
                    table[kind][name] = [FoundPlugin(kind, name, LOCAL, "", plugin)]
        return table

    @cached_property
    def _declared(self) -> DeclaredEntryPoints:
        return read_entry_points()

    def with_allow_list(self, entries: Sequence[str] | None) -> Registry:
        """Return these plugins, of which only listed ones can be loaded.

        An entry is a distribution or `distribution:name`. Plugins of crfl and of this process need no entry. None
        allows every plugin.
        """
        copy = Registry(self._local)
        copy.found = self.found  # read once, for both
        copy._declared = self._declared
        copy._loaded = self._loaded
        copy._allow = entries
        copy._run_directory = self._run_directory
        copy._recorded = self._recorded
        return copy

    def with_recorded(self, distributions: Mapping[tuple[str, str], str]) -> Registry:
        """Return these plugins, with those of a run preferred.

        If several have one name, the one of the distribution that the run recorded counts. `distributions` are by kind
        and name.
        """
        copy = self.with_allow_list(self._allow)
        copy._recorded = distributions
        return copy

    def for_run_directory(self, directory: Path) -> Registry:
        """Return these plugins for a run directory without trust.

        Third-party code is refused.
        """
        copy = self.with_allow_list(self._allow)
        copy._run_directory = directory
        return copy

    def is_usable(self, found: FoundPlugin) -> bool:
        """Ask whether a plugin may be imported.

        Neither an allow-list nor an untrusted run directory may forbid it.
        """
        return found.distribution in (OWN_DISTRIBUTION, LOCAL) or not self._refusal_of(found)

    def _refusal_of(self, found: FoundPlugin) -> str:
        return self._refusal(found.distribution, lambda entries: is_listed(found, entries))

    def _refusal(self, name: str, is_allowed: Callable[[Sequence[str]], bool]) -> str:
        """Return what forbids some code, and the remedy.

        Lists call the code `name`. The text is empty if nothing forbids it.
        """
        if self._allow is not None and not is_allowed(self._allow):
            return f"plugins.allow, which does not list it: if you trust it, add {name!r} there"
        if self._run_directory is not None:
            return (
                f"the run directory {self._run_directory}, which may name any code: read its config.toml, then give "
                "--trust"
            )
        return ""

    def names(self, kind: str) -> tuple[str, ...]:
        """Return the names that a config may use for a kind.

        Blocked names are left out.
        """
        return tuple(sorted(name for name, all_of in self.found[kind].items() if any(map(self.is_usable, all_of))))

    def find(self, kind: str, name: str) -> FoundPlugin:
        """Return the one plugin that a name stands for.

        The name may be `distribution:name`. Raises `PluginError`.
        """
        distribution, _, bare = name.rpartition(":")
        candidates = [
            found
            for found in self.found[kind].get(bare, [])
            if not distribution or normalise_name(found.distribution) == normalise_name(distribution)
        ]
        if not candidates:
            raise PluginError(self._unknown_name_message(kind, name))
        usable = [found for found in candidates if self.is_usable(found)]
        if not usable:
            refusal = self._refusal_of(candidates[0])
            raise PluginError(f"{kind} {name!r} of {candidates[0].origin} is blocked by {refusal}")
        recorded = self._recorded.get((kind, name))
        usable = [found for found in usable if found.distribution == recorded] or usable
        if len(usable) > 1:
            origins = " and ".join(found.origin for found in usable)
            choices = " or ".join(repr(f"{found.distribution}:{bare}") for found in usable)
            raise PluginError(f"{kind} {name!r} is declared by {origins}: write {choices} to choose one")
        return usable[0]

    def load(self, kind: str, name: str) -> type[Plugin]:
        """Return the class that a name stands for.

        It is imported if necessary. Raises `PluginError`.
        """
        return self._import(self.find(kind, name))

    def command(self, name: str) -> Command:
        """Return the command that a name stands for, imported. Raises `PluginError`."""
        return command_of(self.find("command", name))

    def name_of(self, kind: str, plugin: type[Plugin]) -> str:
        """Return the name under which a class is registered. Raises `PluginError`."""
        target = f"{plugin.__module__}:{plugin.__qualname__}"
        for name, candidates in self.found[kind].items():
            for found in candidates:
                value = found.source if isinstance(found.source, type) else found.source.value
                if value in (plugin, target):
                    return name if len(candidates) == 1 else f"{found.distribution}:{name}"
        raise PluginError(
            f"{plugin.__qualname__} is not a registered {kind}: name it with plugins={{'my-name': {plugin.__name__}}}"
        )

    def origin(self, kind: str, name: str) -> str:
        """Return distribution and version that a name stands for. Raises `PluginError`."""
        return self.find(kind, name).origin

    def default_name(self, kind: str, name: str) -> str:
        """Return the name that stands for crfl's own plugin.

        It is `crfl:name` if another distribution declares it, too.
        """
        is_shared = sum(map(self.is_usable, self.found[kind].get(name, ()))) > 1
        return f"{OWN_DISTRIBUTION}:{name}" if is_shared else name

    def import_refusal(self, path: str) -> str:
        """Return why an option must not import some code.

        The code is given as "package.module:name". The text is empty if the option may import it.
        """
        module = path.rpartition(":")[0]
        is_file = module.endswith(".py")
        top = module.partition(".")[0]
        owners: list[str] = []
        if not is_file:  # a file belongs to no distribution, whatever it is called
            declaring = {owner for owner, _, point in self._declared.points if point.module.partition(".")[0] == top}
            owners = sorted({*declaring, *packages_distributions().get(top, ())})
        found = [FoundPlugin("module", module, owner, "", EntryPoint(module, module, "")) for owner in owners]
        if any(map(self.is_usable, found)):
            return ""
        if found:
            refusal = self._refusal_of(found[0])
        else:
            refusal = self._refusal(top, lambda entries: not is_file and top in entries)
        return f"the code {path!r} is blocked by {refusal}" if refusal else ""

    def listing(self) -> tuple[PluginListing, ...]:
        """Return every plugin with its status.

        Imports all of them, each in isolation.
        """
        lines = []
        for kind in KINDS:
            for _, candidates in sorted(self.found[kind].items()):
                lines += [self._list(found, conflict=len(candidates) > 1) for found in candidates]
        return (*lines, *self._declared.broken)

    def _list(self, found: FoundPlugin, *, conflict: bool) -> PluginListing:
        status: ListedStatus = "ok"
        reason = ""
        summary = ""
        hooks: tuple[str, ...] = ()
        try:
            summary, hooks = self._describe(found)
        except PluginError as error:
            status = "failed"
            reason = str(error)
        else:
            if conflict:
                status = "conflict"
                reason = f"write '{found.distribution}:{found.name}' to choose this one"
        return PluginListing(found.kind, found.name, found.distribution, found.version, status, reason, summary, hooks)

    def _describe(self, found: FoundPlugin) -> tuple[str, tuple[str, ...]]:
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

    def _unknown_name_message(self, kind: str, name: str) -> str:
        names = self.names(kind)
        bare = name.rpartition(":")[2]
        parts = [f"there is no {kind} {name!r}:", suggest_names(bare, names)]
        other_kinds = [other for other in KINDS if name in self.found[other]]
        if other_kinds:
            parts.append(f"{name!r} is the name of another kind, {other_kinds[0]};")
        for line in self._declared.broken:
            if line.name == bare:
                parts.append(f"{line.distribution} {line.version} declares it, but {line.reason};")
        parts.append(f"installed: {', '.join(names) or 'none'}")
        return " ".join(" ".join(parts).split())


def read_entry_points() -> DeclaredEntryPoints:
    """Read the entry points of every distribution, each in isolation.

    The standard library's own `entry_points()` raises as soon as one distribution has broken metadata.
    """
    result = DeclaredEntryPoints([], [])
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
            problem = f"its entry points cannot be read: {describe_exception(error)}"
            result.broken.append(PluginListing("unknown", "", *identity_of(candidate), "failed", problem, "", ()))
    return result


def sort_entry_points(result: DeclaredEntryPoints, name: str, version: str, points: Iterable[EntryPoint]) -> None:
    """Add the entry points of a distribution to the result.

    Those with a kind go to `points`, those with a misspelt group to `broken`.
    """
    for point in points:
        if point.group in KIND_OF_GROUP:
            result.points.append((name, version, point))
        elif is_crfl_group(point.group):
            near = closest_group(point.group)
            hint = f"did you mean {near!r}?" if near else f"groups are {', '.join(KIND_OF_GROUP)}"
            problem = f"there is no entry-point group {point.group!r}: {hint}"
            result.broken.append(PluginListing("unknown", point.name, name, version, "failed", problem, "", ()))


def is_crfl_group(group: str) -> bool:
    """Return whether an entry-point group is crfl's, or almost.

    A misspelt group of crfl counts as well.
    """
    return group.startswith(f"{OWN_DISTRIBUTION}.") or bool(closest_group(group))


@cache
def closest_group(group: str) -> str:
    """Return the group of crfl whose name is almost the same.

    The text is empty if none is.
    """
    return next(iter(difflib.get_close_matches(group, KIND_OF_GROUP, n=1, cutoff=0.85)), "")


def identity_of(candidate: Distribution) -> tuple[str, str]:
    """Return name and version of a distribution.

    They are "unknown" and empty if its metadata cannot be read.
    """
    try:
        return candidate.name or "unknown", candidate.version or ""
    except Exception:
        return "unknown", ""


def import_plugin(found: FoundPlugin) -> object:
    """Import the object that an entry point names.

    Any failure inside becomes a `PluginError`.
    """
    if isinstance(found.source, type):
        return found.source
    try:
        # What a plugin prints must not get into the output of crfl, which may be JSON.
        with IMPORT_LOCK, contextlib.redirect_stdout(sys.stderr):
            return found.source.load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise PluginError(f"{found.full_name} cannot be imported: {describe_exception(error)}") from error


def command_of(found: FoundPlugin) -> Command:
    """Import a command.

    Its first use checks whether typer can read it.
    """
    target = import_plugin(found)
    return Command(found.name, target, found.origin, None if isinstance(found.source, type) else found.source)


def is_listed(found: FoundPlugin, entries: Iterable[str]) -> bool:
    """Return whether a list names a plugin.

    An entry is its distribution or `distribution:name`.
    """
    names = (found.distribution, f"{found.distribution}:{found.name}")
    return not set(map(normalise_name, names)).isdisjoint(map(normalise_name, entries))


def normalise_name(name: str) -> str:
    """Return one spelling of a distribution's name.

    Case and separators make no difference.
    """
    return name.replace("_", "-").replace(".", "-").lower()


def plugin_summary(plugin: type[Plugin]) -> str:
    """Return the first line of a plugin's docstring."""
    return (plugin.__doc__ or "").strip().partition("\n")[0]
