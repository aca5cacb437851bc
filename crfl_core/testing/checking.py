"""The kit's functions: check a plugin, and get results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from pydantic import ValidationError

from crfl_core.plugin_api.base import Plugin
from crfl_core.plugin_api.command import Command
from crfl_core.testing.sample_run import Search
from crfl_core.testing.suite import Case, Result, kind_of, results_of

if TYPE_CHECKING:
    import typer

Checked: TypeAlias = "Plugin | type[Plugin] | Command | Callable[..., object] | typer.Typer"
"""An instance of a plugin, a class that is tried with its default options, or a command."""
NOTHING: Mapping[str, str] = {}


def check_plugin(
    plugin: Checked, *, expected_failures: Mapping[str, str] = NOTHING, search: Search | None = None
) -> tuple[Result, ...]:
    """Every check that plugins of this kind have to pass, made in turn.

    `expected_failures` gives, by the name of a check, the reason why this plugin cannot pass it. `search` is for
    certificates: see `Search`.
    """
    return tuple(results_of(Case(instance_of(plugin), search), expected_failures))


def parametrize_with_checks(
    plugins: Sequence[Checked],
    *,
    expected_failures: Mapping[str, str] = NOTHING,
    search: Search | None = None,
) -> Callable[..., Any]:
    """A pytest decorator that makes one test case of every check of every plugin, each with an id that can be read.

        @parametrize_with_checks([TrimmedMean(trim=2)])
        def test_plugin_conforms(check):
            check()

    `expected_failures` gives reasons by the name of a check, or by `Plugin-check` if only one of several plugins is
    meant. Such a case has to fail: the suite says so as soon as it passes.
    """
    from crfl_core.testing.pytest_cases import cases_of

    return cases_of([Case(instance_of(plugin), search) for plugin in plugins], expected_failures)


def instance_of(plugin: Checked) -> Plugin | Command:
    """The plugin itself, one of its class with default options, or the command that a function or a typer app is."""
    if isinstance(plugin, Plugin):
        kind_of(type(plugin))
        return plugin
    if not isinstance(plugin, type):
        return plugin if isinstance(plugin, Command) else Command(command_name(plugin), plugin)
    kind_of(plugin)
    try:
        instance: Plugin = plugin()
    except ValidationError as error:
        why = "; ".join(".".join(map(str, (*detail["loc"], detail["msg"]))) for detail in error.errors())
        raise TypeError(f"{plugin.__name__} cannot be made without options ({why}): pass an instance") from error
    return instance


def command_name(target: Callable[..., object] | typer.Typer) -> str:
    """What a command would be called if its function, or `name` of its typer app, gave it its name."""
    name = getattr(target, "__name__", None) or getattr(getattr(target, "info", None), "name", None)
    return name.replace("_", "-") if isinstance(name, str) else "command"
