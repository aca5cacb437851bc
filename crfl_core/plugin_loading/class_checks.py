"""Checks of plugin classes, made before a run starts and in `crfl plugins`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from crfl_core.errors import ConfigError, PluginError, suggest_names
from crfl_core.plugin_api import hookspecs
from crfl_core.plugin_api.base import API_VERSION, Plugin, ServerStep, refuse_overriding
from crfl_core.plugin_api.plugin_errors import function_of, source_location
from crfl_core.plugin_api.tracker import Tracker

HOOKS = {
    name: tuple(inspect.signature(hook).parameters)
    for name, hook in vars(hookspecs).items()
    if hasattr(hook, "crfl_spec")
}
"""Every hook and its arguments."""


def check_class(who: str, candidate: object, base: type[Plugin], distribution: str) -> type[Plugin]:
    """Return the object as a plugin class of its kind.

    Raises `PluginError` that says what is wrong.
    """
    if not (isinstance(candidate, type) and issubclass(candidate, base)):
        raise PluginError(f"{who} is {candidate!r}, not a subclass of crfl_core.extend.{base.__name__}")
    check_version(who, candidate, distribution)
    if inspect.isabstract(candidate):
        missing = ", ".join(sorted(candidate.__abstractmethods__))
        raise PluginError(f"{who} does not implement {missing}")
    try:
        refuse_overriding(candidate, Plugin)  # again: a class can be changed after its definition
        if issubclass(candidate, ServerStep):
            candidate.check_dependence()
    except PluginError as error:
        raise PluginError(f"{who}: {error}") from error
    check_methods(who, candidate)
    check_hooks(who, candidate)
    return candidate


def check_version(who: str, plugin: type[Plugin], distribution: str) -> None:
    """Refuse a class that was written for another plugin API."""
    needs = plugin.api_version
    if not isinstance(needs, int) or needs > API_VERSION:
        raise PluginError(f"{who} needs plugin API {needs}, this crfl offers {API_VERSION}: upgrade crfl")
    if needs < API_VERSION:
        raise PluginError(
            f"{who} was written for plugin API {needs}, this crfl offers {API_VERSION}: upgrade {distribution}; "
            "if it is yours, the documentation of crfl has a page on the API contract"
        )


def check_methods(who: str, plugin: type[Plugin]) -> None:
    """Refuse methods that do not take their base's arguments.

    The core calls them with the arguments of the methods that they replace.
    """
    own_package = f"{Plugin.__module__.partition('.')[0]}."
    replaceable: dict[str, Any] = {}
    for base in reversed(plugin.__mro__):
        if base.__module__.startswith(own_package):
            replaceable |= vars(base)
    for name, called in replaceable.items():
        found = inspect.getattr_static(plugin, name)
        if found is called or not (inspect.isfunction(found) and inspect.isfunction(called)):
            continue
        wanted = inspect.signature(called)
        taken = inspect.signature(found)
        try:
            taken.bind(*wanted.parameters)
        except TypeError:
            takes = ", ".join([*taken.parameters][1:]) or "nothing"
            gives = ", ".join([*wanted.parameters][1:]) or "nothing"
            raise PluginError(
                f"{who}: {name} ({source_location(found)}) takes {takes}, and is called with {gives}: "
                "give it these arguments"
            ) from None


def check_hooks(who: str, plugin: type[Plugin]) -> None:
    """Refuse methods that a run would never call.

    They are unknown hooks, hooks with wrong arguments, and hooks without `@hookimpl`.
    """
    for name in sorted({*HOOKS, *hook_names(plugin)}):
        member = inspect.getattr_static(plugin, name, None)
        if member is not None and (problem := hook_problem(name, member)):
            raise PluginError(f"{who}: {problem}")


def hook_problem(name: str, member: Any) -> str:
    """Return why a method does not implement a hook.

    The text is empty if it does.
    """
    place = source_location(member)
    if not hasattr(member, "crfl_impl"):
        return f"{name} ({place}) would never be called: mark it with @hookimpl"
    options = member.crfl_impl
    function = function_of(member)
    hook = options.get("specname") or name
    if hook not in HOOKS:
        hint = suggest_names(hook, HOOKS) or f"hooks are {', '.join(HOOKS)}"
        return "" if options.get("optionalhook") else f"there is no hook {hook!r} ({place}): {hint}"
    if inspect.isgeneratorfunction(function):
        return f"{name} ({place}) is a hook wrapper, which a run does not call: write a plain method"
    for argument in unknown_arguments(function, HOOKS[hook]):
        return f"the hook {hook} has no argument {argument!r} ({place}): it has {', '.join(HOOKS[hook])}"
    return ""


def unknown_arguments(function: Callable[..., object], known: tuple[str, ...]) -> Iterator[str]:
    """Yield the arguments of an implementation that its hook would not fill."""
    parameters = list(inspect.signature(function).parameters.values())
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    for parameter in parameters[1:]:  # the first is the plugin itself
        if parameter.kind in positional and parameter.default is parameter.empty and parameter.name not in known:
            yield parameter.name


def hook_names(plugin: type[Plugin]) -> tuple[str, ...]:
    """Return the hooks that a plugin class implements.

    They are its methods with `@hookimpl`, sorted.
    """
    names = {name for base in plugin.__mro__ for name in vars(base)}
    return tuple(sorted(name for name in names if hasattr(inspect.getattr_static(plugin, name, None), "crfl_impl")))


def require_observing_tracker(tracker: Tracker) -> Tracker:
    """Refuse a tracker beside the config that decides.

    The run directory would not record it.
    """
    check_hooks(f"tracker {tracker.full_name}", type(tracker))
    deciding = {"crfl_accept_round", "crfl_effective_weights"} & set(hook_names(type(tracker)))
    if deciding:
        raise ConfigError(f"{tracker.configured_as!r} implements {min(deciding)}: name it in the config's trackers")
    return tracker
