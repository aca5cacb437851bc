"""The conformance kit: does a plugin keep the promises of its kind?

    check_plugin(MyRule())                     results, for a plugin of any kind
    parametrize_with_checks([MyRule()])        the same as cases of pytest
    crfl plugins check my-rule                 the same from the terminal, for an installed plugin

Every check is a function `check_<behaviour>` whose docstring begins with the promise. A failure says what was expected,
what was found and what to change. docs/writing-plugins/testing.md lists all checks.
"""

# Importing these modules registers their checks. A plugin is checked in this order: first what holds for every kind.
from crfl_core.testing import any_plugin, aggregation_steps, aggregation_rules, attacks, datasets, partitioners  # noqa: F401, I001
from crfl_core.testing import optimisers, models, feature_maps, algorithms, certificates, engines  # noqa: F401
from crfl_core.testing import trackers, commands, endurance  # noqa: F401
from crfl_core.testing.checking import check_plugin, parametrize_with_checks
from crfl_core.testing.sample_rounds import round_of
from crfl_core.testing.sample_run import Search, Trial
from crfl_core.testing.suite import CheckFailed, Promise, Result, promises_of

__all__ = [
    "CheckFailed",
    "Promise",
    "Result",
    "Search",
    "Trial",
    "check_plugin",
    "parametrize_with_checks",
    "promises_of",
    "round_of",
]
