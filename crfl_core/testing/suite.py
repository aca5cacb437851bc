"""Checks of the kit: what a check is, which plugins it is for, and how it becomes a result."""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from inspect import cleandoc
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast

import numpy as np
from pydantic import BaseModel
from torch import Tensor

from crfl_core.errors import UNEXPECTED_EXCEPTIONS, CrflError, describe_exception
from crfl_core.plugin_api import KINDS
from crfl_core.plugin_api.base import Plugin
from crfl_core.plugin_api.command import Command
from crfl_core.plugin_loading.mutation_guard import InputsChanged

if TYPE_CHECKING:
    from crfl_core.testing.sample_run import Search

P = TypeVar("P", bound=Plugin | Command, covariant=True)
T = TypeVar("T")
Status = Literal["passed", "failed", "skipped", "expected failure"]


class CheckFailed(AssertionError):
    """Error of a plugin that breaks a promise: what was expected, what was found, what to change."""

    def __init__(self, expected: str, found: str, fix: str) -> None:
        super().__init__(f"expected {expected}; found {found}. To fix it: {fix}")
        self.expected = expected
        self.found = found
        self.fix = fix


class Skipped(Exception):
    """Signal that a check does not apply to this plugin, or cannot be made here."""


class Case(Generic[P]):
    """Plugin under test. `once` keeps what several checks need: data that were read, a run that was trained."""

    def __init__(self, plugin: P, search: Search | None = None) -> None:
        self.plugin = plugin
        self.search = search
        self._known: dict[Callable[[Case[P]], Any], Any] = {}
        self._causes: dict[Hashable, str] = {}

    @property
    def name(self) -> str:
        """Return the name in results and test ids."""
        return self.plugin.configured_as

    @cached_property
    def kind(self) -> str:
        """Return the plugin's kind, as in `crfl plugins`."""
        return plugin_kind(type(self.plugin))

    def once(self, make: Callable[[Case[P]], T]) -> T:
        """Return what `make` returns for this case, computed on first use."""
        if make not in self._known:
            self._known[make] = make(self)
        return cast("T", self._known[make])

    def seen_before(self, failure: CheckFailed, check: str) -> str:
        """Return the check that failed before for the same cause.

        The text is empty if none did.
        """
        cause = cause_of(failure, type(self.plugin))
        first = check if cause is None else self._causes.setdefault(cause, check)
        return "" if first == check else first

    def fresh(self) -> P:
        """Return the plugin as a config would make it again.

        It is of the same distribution, without any memory.
        """
        plugin = cast("Plugin", self.plugin)
        options = {name: getattr(plugin, name) for name in plugin.model_fields_set}
        return cast("P", type(plugin).model_validate(options).with_name(self.name, plugin._provided_by))


SAME_CAUSE = "it cannot be made before {} passes: what goes wrong there stops this one, too"


def cause_of(failure: CheckFailed, plugin: type[object]) -> Hashable:
    """Return the cause of a failure by an exception.

    It is a place in the plugin, or what the core refused. None for a promise that is broken in a way of its own.
    Numbers in a message are those of the round that was tried.
    """
    root: BaseException = failure
    while (deeper := root.__cause__) is not None:
        root = deeper
    if root is failure:
        return None
    if isinstance(root, CrflError):
        return type(root), re.sub(r"\d+", "", str(root))
    frames = traceback.extract_tb(root.__traceback__)
    own = [frame for frame in frames if frame.filename == getattr(sys.modules.get(plugin.__module__), "__file__", None)]
    place = (own or frames)[-1]
    return type(root), place.filename, place.lineno


CheckFunction = Callable[[Case[Any]], None]
Use = Callable[[Any, Case[Any]], object]


@dataclass(frozen=True)
class Promise:
    """Check, and the base class whose subclasses promise what it checks."""

    base: type[Plugin | Command]
    function: CheckFunction

    @property
    def name(self) -> str:
        """Return the check's name without its prefix."""
        return self.function.__name__.removeprefix("check_")

    @property
    def text(self) -> str:
        """Return the promise: the first line of the check's docstring."""
        return cleandoc(self.function.__doc__ or "").partition("\n")[0]

    def check(self, case: Case[Any]) -> None:
        """Raise `CheckFailed` if the plugin breaks the promise.

        Raises `Skipped` if the plugin has no such promise to keep.
        """
        try:
            self.function(case)
        except (CheckFailed, Skipped):
            raise
        except InputsChanged as error:
            raise CheckFailed("inputs as they were", str(error), "return new tensors: tensor.clone()") from error
        except UNEXPECTED_EXCEPTIONS as error:
            raise CheckFailed(
                f"no exception ({self.text.rstrip('.')})",
                describe_exception(error),
                "handle this input; options that do not fit a run are an OptionError before training",
            ) from error


@dataclass(frozen=True)
class Result:
    """Result of one check of one plugin. `message` says what to fix, or why it was skipped or expected to fail."""

    plugin: str
    check: str
    promise: str
    status: Status
    message: str = ""


PROMISES: list[Promise] = []
"""Every check of the kit, in the order in which they are made."""

USES: dict[type[Plugin], Use] = {}
"""The ordinary use of each kind, for checks that hold for all kinds."""


def check_for(base: type[Plugin | Command]) -> Callable[[CheckFunction], CheckFunction]:
    """Register a function `check_<behaviour>(case)` as a check of every subclass of `base`."""

    def register(function: CheckFunction) -> CheckFunction:
        PROMISES.append(Promise(base, function))
        return function

    return register


def usage_of(base: type[Plugin]) -> Callable[[Use], Use]:
    """Register a function as the ordinary use of a kind.

    The function returns all results. It is handed the plugin to use, and the case for what can be computed once,
    whichever instance is used.
    """

    def register(function: Use) -> Use:
        USES[base] = function
        return function

    return register


def promises_of(plugin: type[Plugin | Command]) -> Iterator[Promise]:
    """Return the checks that a plugin class has to pass."""
    return (promise for promise in PROMISES if issubclass(plugin, promise.base))


def plugin_kind(plugin: type[object]) -> str:
    """Return the kind that a plugin class belongs to."""
    for kind, described in KINDS.items():
        if described.includes(plugin):
            return kind
    bases = ", ".join(described.base.__name__ for described in KINDS.values())
    raise TypeError(f"{plugin.__name__} derives from none of {bases}")


def run_checks(case: Case[Any], expected_failures: Mapping[str, str]) -> Iterator[Result]:
    """Run every check of a plugin in turn."""
    promises = list(promises_of(type(case.plugin)))
    check_expected_failures(expected_failures, {promise.name for promise in promises})
    for promise in promises:
        status, message = run_check(promise, case, expected_failures.get(promise.name))
        yield Result(case.name, promise.name, promise.text, status, message)


def run_check(promise: Promise, case: Case[Any], reason: str | None) -> tuple[Status, str]:
    """Run a check, which should fail if `reason` is given."""
    try:
        promise.check(case)
    except Skipped as why:
        return "skipped", str(why)
    except CheckFailed as failure:
        if reason is not None:
            return "expected failure", reason
        first = case.seen_before(failure, promise.name)
        return ("skipped", SAME_CAUSE.format(first)) if first else ("failed", str(failure))
    if reason is not None:
        return "failed", f"it passes, but is expected to fail ({reason}): remove it from expected_failures"
    return "passed", ""


def check_expected_failures(expected_failures: Mapping[str, str], known: set[str]) -> None:
    """Refuse expected failures of checks that do not exist."""
    if unknown := sorted(set(expected_failures) - known):
        raise ValueError(f"expected_failures: there is no check {unknown[0]!r}; there are {', '.join(sorted(known))}")


def difference(one: object, other: object, path: str = "the answer") -> str:
    """Describe where two answers differ.

    The text is empty if they do not. Functions inside them are not compared.
    """
    if callable(one) and callable(other):
        return ""
    if type(one) is not type(other):
        return f"{path} is a {type(one).__name__} once and a {type(other).__name__} once"
    if isinstance(one, Tensor | np.ndarray):
        return "" if same_array(one, other) else f"{path} differs"
    for name, here, there in pair_parts(one, other):
        if found := difference(here, there, f"{path}{name}"):
            return found
    if isinstance(one, Mapping | Sequence) and len(one) != len(other):  # type: ignore[arg-type]
        return f"{path} has {len(one)} entries once and {len(other)} once"  # type: ignore[arg-type]
    if is_plain(one) and one != other and not (one != one and other != other):
        return f"{path} is {one!r} once and {other!r} once"
    return ""


def pair_parts(one: Any, other: Any) -> list[tuple[str, object, object]]:
    """Return pairs of parts of two objects of one type."""
    if is_dataclass(one) and not isinstance(one, type):
        return [(f".{part.name}", getattr(one, part.name), getattr(other, part.name)) for part in fields(one)]
    if isinstance(one, BaseModel):
        return [(f".{name}", getattr(one, name), getattr(other, name)) for name in type(one).model_fields]
    if isinstance(one, Mapping):
        return [(f"[{key!r}]", value, other.get(key)) for key, value in one.items()]
    if isinstance(one, Sequence) and not isinstance(one, str | bytes):
        return [(f"[{position}]", *pair) for position, pair in enumerate(zip(one, other, strict=False))]
    return []


def is_plain(value: object) -> bool:
    """Return whether a value has no parts."""
    return isinstance(value, str | bytes | int | float | None)


def same_array(one: Any, other: Any) -> bool:
    """Return whether shape, type and entries are equal; NaN equals NaN."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if isinstance(one, Tensor):
        return one.device == other.device and same_array(one.detach().cpu().numpy(), other.detach().cpu().numpy())
    return bool(np.array_equal(one, other, equal_nan=one.dtype.kind in "fc"))
