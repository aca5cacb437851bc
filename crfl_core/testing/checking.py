"""Check a plugin: as a list of results, or as test cases of pytest, which is imported only then."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from pydantic import ValidationError

from crfl_core.plugin_api.base import Plugin
from crfl_core.plugin_api.command import Command
from crfl_core.testing.suite import (
    SAME_CAUSE,
    Case,
    CheckFailed,
    Promise,
    Result,
    Skipped,
    check_expected_failures,
    plugin_kind,
    promises_of,
    run_checks,
)

if TYPE_CHECKING:
    import typer

    from crfl_core.testing.sample_run import Search


Checked: TypeAlias = "Plugin | type[Plugin] | Command | Callable[..., object] | typer.Typer"
"""An instance of a plugin, a class that is tried with its default options, or a command."""
NOTHING: Mapping[str, str] = {}


def check_plugin(
    plugin: Checked, *, expected_failures: Mapping[str, str] = NOTHING, search: Search | None = None
) -> tuple[Result, ...]:
    """Run every check that plugins of this kind have to pass.

    `expected_failures` gives, by the name of a check, the reason why this plugin cannot pass it. `search` is for
    certificates: see `Search`.
    """
    return tuple(run_checks(Case(instance_of(plugin), search), expected_failures))


def each_result(plugin: Checked) -> Iterator[Result]:
    """Yield the result of each of `check_plugin`'s checks when known."""
    yield from run_checks(Case(instance_of(plugin), None), NOTHING)


def parametrize_with_checks(
    plugins: Sequence[Checked],
    *,
    expected_failures: Mapping[str, str] = NOTHING,
    search: Search | None = None,
) -> Callable[..., Any]:
    """Parametrize a test with every check of every plugin.

    Each has a readable id.

        @parametrize_with_checks([TrimmedMean(trim=2)])
        def test_plugin_conforms(check):
            check()

    `expected_failures` gives reasons by the name of a check, or by `Plugin-check` if only one of several plugins is
    meant. Such a case has to fail: the suite says so as soon as it passes.
    """
    return cases_of([Case(instance_of(plugin), search) for plugin in plugins], expected_failures)


def instance_of(plugin: Checked) -> Plugin | Command:
    """Return an instance of a plugin class, or a command.

    A function or typer app becomes a `Command`.
    """
    if isinstance(plugin, Plugin):
        plugin_kind(type(plugin))
        return plugin
    if not isinstance(plugin, type):
        return plugin if isinstance(plugin, Command) else Command(command_name(plugin), plugin)
    plugin_kind(plugin)
    try:
        instance: Plugin = plugin()
    except ValidationError as error:
        why = "; ".join(".".join(map(str, (*detail["loc"], detail["msg"]))) for detail in error.errors())
        raise TypeError(f"{plugin.__name__} cannot be made without options ({why}): pass an instance") from error
    return instance


def command_name(target: Callable[..., object] | typer.Typer) -> str:
    """Return a command's name, from its function or typer app."""
    name = getattr(target, "__name__", None) or getattr(getattr(target, "info", None), "name", None)
    return name.replace("_", "-") if isinstance(name, str) else "command"


@dataclass(frozen=True)
class PluginCheck:
    """Check of one plugin, called by a test."""

    title: str
    case: Case[Any]
    promise: Promise

    @property
    def name(self) -> str:
        """Return the name for pytest."""
        return f"{self.title}-{self.promise.name}"

    def __call__(self) -> None:
        """Run the check: raise `CheckFailed`, skip, or pass."""
        import pytest

        try:
            self.promise.check(self.case)
        except Skipped as why:
            pytest.skip(str(why))
        except CheckFailed as failure:
            if first := self.case.seen_before(failure, self.promise.name):
                pytest.skip(SAME_CAUSE.format(first))
            raise


def cases_of(cases: Sequence[Case[Any]], expected_failures: Mapping[str, str]) -> Callable[..., Any]:
    """Return the decorator that gives a test the argument `check`."""
    import pytest

    checks = [
        PluginCheck(title, case, promise)
        for title, case in zip(titles(cases), cases, strict=True)
        for promise in promises_of(type(case.plugin))
    ]
    check_expected_failures(expected_failures, {name for check in checks for name in (check.name, check.promise.name)})
    parameters = []
    for check in checks:
        reason = expected_failures.get(check.name, expected_failures.get(check.promise.name))
        marks = [] if reason is None else [pytest.mark.xfail(reason=reason, strict=True, raises=CheckFailed)]
        parameters.append(pytest.param(check, id=check.name, marks=marks))
    return pytest.mark.parametrize("check", parameters)


def titles(cases: Sequence[Case[Any]]) -> list[str]:
    """Name the plugins so that all titles differ.

    Titles have classes where kinds share a name, and options where a class repeats.
    """
    classes = Counter(name for name, _ in {(case.name, type(case.plugin)) for case in cases})
    several = Counter((case.name, type(case.plugin)) for case in cases)
    found = []
    for case in cases:
        title = case.name if classes[case.name] == 1 else f"{case.name}[{type(case.plugin).__name__}]"
        repeated = several[case.name, type(case.plugin)] > 1
        found.append(f"{title}({options_of(case.plugin)})" if repeated else title)
    return found


def options_of(plugin: Plugin | Command) -> str:
    """Return the options that differ from their defaults.

    For a command, return its origin.
    """
    if isinstance(plugin, Command):
        return plugin.origin
    return ", ".join(f"{name}={getattr(plugin, name)!r}" for name in sorted(plugin.model_fields_set))
