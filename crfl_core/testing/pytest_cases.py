"""Checks as cases of pytest, which is imported only here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from crfl_core.plugin_api.base import Plugin
from crfl_core.plugin_api.command import Command
from crfl_core.testing.suite import SAME_CAUSE, Case, CheckFailed, Promise, Skipped, promises_of, refuse_unknown


@dataclass(frozen=True)
class PluginCheck:
    """One check of one plugin, to be called by a test."""

    title: str
    case: Case[Any]
    promise: Promise

    @property
    def name(self) -> str:
        """What pytest calls it."""
        return f"{self.title}-{self.promise.name}"

    def __call__(self) -> None:
        """Raise `CheckFailed`, skip, or pass."""
        try:
            self.promise.check(self.case)
        except Skipped as why:
            pytest.skip(str(why))
        except CheckFailed as failure:
            if first := self.case.seen_before(failure, self.promise.name):
                pytest.skip(SAME_CAUSE.format(first))
            raise


def cases_of(cases: Sequence[Case[Any]], expected_failures: Mapping[str, str]) -> Callable[..., Any]:
    """The decorator that gives a test the argument `check`."""
    checks = [
        PluginCheck(title, case, promise)
        for title, case in zip(titles(cases), cases, strict=True)
        for promise in promises_of(type(case.plugin))
    ]
    refuse_unknown(expected_failures, {name for check in checks for name in (check.name, check.promise.name)})
    parameters = []
    for check in checks:
        reason = expected_failures.get(check.name, expected_failures.get(check.promise.name))
        marks = [] if reason is None else [pytest.mark.xfail(reason=reason, strict=True, raises=CheckFailed)]
        parameters.append(pytest.param(check, id=check.name, marks=marks))
    return pytest.mark.parametrize("check", parameters)


def titles(cases: Sequence[Case[Any]]) -> list[str]:
    """The names of the plugins, with their classes where kinds share one, and options where one is tried repeatedly."""
    classes = Counter(name for name, _ in {(case.name, type(case.plugin)) for case in cases})
    several = Counter((case.name, type(case.plugin)) for case in cases)
    found = []
    for case in cases:
        title = case.name if classes[case.name] == 1 else f"{case.name}[{type(case.plugin).__name__}]"
        repeated = several[case.name, type(case.plugin)] > 1
        found.append(f"{title}({options_of(case.plugin)})" if repeated else title)
    return found


def options_of(plugin: Plugin | Command) -> str:
    """The options that are not left to their defaults; for a command, where it comes from."""
    if isinstance(plugin, Command):
        return plugin.origin
    return ", ".join(f"{name}={getattr(plugin, name)!r}" for name in sorted(plugin.model_fields_set))
