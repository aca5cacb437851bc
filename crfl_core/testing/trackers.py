"""Checks of trackers: they observe finished, failed and resumed runs, and change nothing."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from pydantic import Field

from crfl_core.errors import CrflWarning, RunError
from crfl_core.plugin_api.aggregator import Aggregator
from crfl_core.plugin_api.hookspecs import hookimpl
from crfl_core.plugin_api.tracker import Tracker
from crfl_core.plugin_loading.class_checks import hook_names
from crfl_core.records.round import ClientUpdates, RuleResult, State
from crfl_core.runs.run import resume, run
from crfl_core.testing.sample_run import SPOTS, Spots, small_config
from crfl_core.testing.suite import Case, CheckFailed, Skipped, check_for, difference, usage_of

if TYPE_CHECKING:
    from crfl_core.plugin_api.base import Plugin
    from crfl_core.records.ledger import RoundRecord
    from crfl_core.runs.results import RunResult

FAILING = "conformance-failing"


class Failing(Aggregator):
    """Rule that fails in the second round."""

    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        """Return the first update; fail from the second round on."""
        if updates.round.number > 1:
            raise RunError("this run is meant to fail")
        weights = updates.values.new_zeros(len(updates.values))
        weights[0] = 1.0
        return RuleResult(updates.values[0].clone(), weights, state=state)


class Stopping(Tracker):
    """Tracker that interrupts a run in one of its rounds, as Ctrl-C does."""

    at: int = Field(1, ge=1, description="the round, which a resumed run plays again")

    @hookimpl
    def crfl_round_finished(self, record: RoundRecord) -> None:
        """Raise `KeyboardInterrupt` in the chosen round."""
        if record.round == self.at:
            raise KeyboardInterrupt


@usage_of(Tracker)
def use_tracker(tracker: Tracker, _: Case[Tracker]) -> dict[str, object]:
    """Run a small federation with the tracker and return the results."""
    with run_folder(tracker) as (config, plugins, path):
        return run_contents(run(config, out=path, plugins=plugins))


@check_for(Tracker)
def check_a_run_is_watched_without_trouble(case: Case[Tracker]) -> None:
    """All hooks of two runs, one after the other, are answered by one instance."""
    for _ in range(2):
        with run_folder(case.plugin) as (config, plugins, path):
            run(config, out=path, plugins=plugins)


@check_for(Tracker)
def check_survives_a_failed_run(case: Case[Tracker]) -> None:
    """When a run fails, the tracker is told and raises no error of its own."""
    with run_folder(case.plugin, aggregation=FAILING) as (config, plugins, path):
        try:
            run(config, out=path, plugins=plugins | {FAILING: Failing})
        except RunError:
            return
    raise AssertionError("the run should have failed")


@check_for(Tracker)
def check_survives_a_resumed_run(case: Case[Tracker]) -> None:
    """After an interrupt the tracker continues where the run does."""
    with run_folder(case.plugin) as (config, plugins, path):
        try:
            run(config, out=path, plugins=plugins, trackers=[Stopping()])
        except KeyboardInterrupt:
            resume(path, plugins=plugins)


@check_for(Tracker)
def check_results_stay_the_same(case: Case[Tracker]) -> None:
    """A run that is watched has the same model and ledger as one that is not."""
    if {"crfl_accept_round", "crfl_effective_weights"} & set(hook_names(type(case.plugin))):
        raise Skipped("it implements a hook that is there to change results")
    with run_folder(case.plugin) as (config, plugins, path):
        watched = run_contents(run(config, out=path, plugins=plugins))
        alone = run_contents(run(config | {"trackers": []}, out=path.with_name("alone"), plugins=plugins))
    if found := difference(alone, watched, "the run"):
        raise CheckFailed("the same run, watched or not", found, "change nothing that a hook is handed")


@contextmanager
def run_folder(tracker: Tracker, **changes: Any) -> Iterator[tuple[dict[str, Any], dict[str, type[Plugin]], Path]]:
    """Yield a config, plugins and a folder.

    The config names the tracker. Raises `CheckFailed` if the run disables the tracker.
    """
    name = tracker.configured_as
    plugins: dict[str, type[Plugin]] = {SPOTS: Spots, name: type(tracker)}
    with TemporaryDirectory(prefix="crfl-") as folder, warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        yield small_config(trackers=[tracker.with_name(name)], **changes), plugins, Path(folder, "run")
    if troubles := crfl_warnings(seen):
        raise CheckFailed(
            "a tracker that survives the run", troubles[0], "an exception disables it: catch what may go wrong"
        )


def crfl_warnings(seen: Sequence[warnings.WarningMessage]) -> list[str]:
    """Return the warnings of the core."""
    return [str(one.message) for one in seen if issubclass(one.category, CrflWarning)]


def run_contents(result: RunResult) -> dict[str, object]:
    """Return the model and the ledger of a run."""
    return {"parameters": result.parameters, "rounds": result.ledger.rounds, "clients": result.ledger.clients}
