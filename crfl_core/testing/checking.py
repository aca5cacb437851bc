"""The kit's functions: check a plugin, and get results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from pydantic import ValidationError

from crfl_core.kinds.aggregator import AggregationStep, Aggregator, Stage
from crfl_core.kinds.attack import Attack
from crfl_core.kinds.certificate import Certificate
from crfl_core.kinds.dataset import Dataset
from crfl_core.kinds.engine import Engine
from crfl_core.kinds.feature_map import FeatureMap
from crfl_core.kinds.model import Model
from crfl_core.kinds.partitioner import Partitioner
from crfl_core.kinds.plugin import Plugin
from crfl_core.kinds.tracker import Tracker
from crfl_core.testing.sample_run import Search
from crfl_core.testing.suite import Case, Result, kind_of, results_of

P = TypeVar("P", bound=Plugin)
Checked: TypeAlias = "P | type[P]"
"""An instance, or a class that is tried with its default options."""
NOTHING: Mapping[str, str] = {}


def check_plugin(
    plugin: Checked[Any], *, expected_failures: Mapping[str, str] = NOTHING, search: Search | None = None
) -> tuple[Result, ...]:
    """Every check that plugins of this kind have to pass, made in turn.

    `expected_failures` gives, by the name of a check, the reason why this plugin cannot pass it. `search` is for
    certificates: see `Search`.
    """
    return tuple(results_of(Case(instance_of(plugin), search), expected_failures))


def check_aggregator(
    plugin: Checked[AggregationStep], *, expected_failures: Mapping[str, str] = NOTHING
) -> tuple[Result, ...]:
    """Every check of an aggregation rule or a stage."""
    return check_plugin(of_kind(plugin, Aggregator, Stage), expected_failures=expected_failures)


def check_stage(plugin: Checked[Stage], *, expected_failures: Mapping[str, str] = NOTHING) -> tuple[Result, ...]:
    """Every check of an aggregation stage."""
    return check_plugin(of_kind(plugin, Stage), expected_failures=expected_failures)


def check_attack(plugin: Checked[Attack], *, expected_failures: Mapping[str, str] = NOTHING) -> tuple[Result, ...]:
    """Every check of an attack."""
    return check_plugin(of_kind(plugin, Attack), expected_failures=expected_failures)


def check_dataset(plugin: Checked[Dataset], *, expected_failures: Mapping[str, str] = NOTHING) -> tuple[Result, ...]:
    """Every check of a dataset; skipped if its files are not here."""
    return check_plugin(of_kind(plugin, Dataset), expected_failures=expected_failures)


def check_partitioner(
    plugin: Checked[Partitioner], *, expected_failures: Mapping[str, str] = NOTHING
) -> tuple[Result, ...]:
    """Every check of a partitioner."""
    return check_plugin(of_kind(plugin, Partitioner), expected_failures=expected_failures)


def check_model(plugin: Checked[Model], *, expected_failures: Mapping[str, str] = NOTHING) -> tuple[Result, ...]:
    """Every check of a model."""
    return check_plugin(of_kind(plugin, Model), expected_failures=expected_failures)


def check_feature_map(
    plugin: Checked[FeatureMap], *, expected_failures: Mapping[str, str] = NOTHING
) -> tuple[Result, ...]:
    """Every check of a feature map."""
    return check_plugin(of_kind(plugin, FeatureMap), expected_failures=expected_failures)


def check_certificate(
    plugin: Checked[Certificate], *, expected_failures: Mapping[str, str] = NOTHING, search: Search | None = None
) -> tuple[Result, ...]:
    """Every check of a certificate; with a `search`, also that no attack it finds beats the certificate."""
    return check_plugin(of_kind(plugin, Certificate), expected_failures=expected_failures, search=search)


def check_engine(plugin: Checked[Engine], *, expected_failures: Mapping[str, str] = NOTHING) -> tuple[Result, ...]:
    """Every check of an engine."""
    return check_plugin(of_kind(plugin, Engine), expected_failures=expected_failures)


def check_tracker(plugin: Checked[Tracker], *, expected_failures: Mapping[str, str] = NOTHING) -> tuple[Result, ...]:
    """Every check of a tracker."""
    return check_plugin(of_kind(plugin, Tracker), expected_failures=expected_failures)


def parametrize_with_checks(
    plugins: Sequence[Checked[Any]],
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


def instance_of(plugin: Checked[P]) -> P:
    """The plugin itself, or one of its class with default options."""
    if not isinstance(plugin, type):
        kind_of(type(plugin))
        return plugin
    kind_of(plugin)
    try:
        return plugin()
    except ValidationError as error:
        why = "; ".join(".".join(map(str, (*detail["loc"], detail["msg"]))) for detail in error.errors())
        raise TypeError(f"{plugin.__name__} cannot be made without options ({why}): pass an instance") from error


def of_kind(plugin: Checked[P], *kinds: type[Plugin]) -> Checked[P]:
    """The plugin, if it is of one of these kinds."""
    owner = plugin if isinstance(plugin, type) else type(plugin)
    if not issubclass(owner, kinds):
        expected = " or ".join(kind.__name__ for kind in kinds)
        raise TypeError(f"{owner.__name__} is not a subclass of {expected}: use check_plugin for any kind")
    return plugin
