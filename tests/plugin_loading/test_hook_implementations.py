"""Who is asked, what happens if one fails, and implementations that do not fit."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from crfl_aggregators.trimmed_mean import Median

import crfl_core
from crfl_core import CrflWarning
from crfl_core.extend import (
    ConfigError,
    PluginError,
    PluginFailure,
    Registry,
    RoundRecord,
    RunContext,
    Tracker,
    hookimpl,
)
from tests.plugin_loading.watched_runs import SMALL, run

Install = Callable[..., None]


def test_an_implementation_takes_any_of_the_arguments_by_name(tmp_path: Path) -> None:
    seen: list[tuple[int, str]] = []

    class Watch(Tracker):
        @hookimpl
        def crfl_round_finished(self, record: RoundRecord, run: RunContext, comment: str = "mine") -> None:
            seen.append((record.round, f"{run.name} {comment}"))

        @hookimpl
        def crfl_run_finished(self) -> None:
            seen.append((0, "done"))

    run(tmp_path, Watch, name="any", rounds=1)
    assert seen == [(1, "any mine"), (0, "done")]


def test_a_plugin_of_any_kind_may_carry_hooks(tmp_path: Path) -> None:
    rounds: list[int] = []

    class Watching(Median):
        @hookimpl
        def crfl_round_finished(self, record: RoundRecord) -> None:
            rounds.append(record.round)

    crfl_core.run(SMALL | {"aggregation": ["watching"]}, out=tmp_path / "run", plugins={"watching": Watching})
    assert rounds == [1, 2, 3]


def test_trackers_of_the_caller_watch_without_becoming_part_of_the_config(tmp_path: Path) -> None:
    rounds: list[int] = []

    class Watch(Tracker):
        @hookimpl
        def crfl_round_finished(self, record: RoundRecord) -> None:
            rounds.append(record.round)

    result = crfl_core.run(SMALL, out=tmp_path / "run", trackers=[Watch()])
    assert rounds == [1, 2, 3]
    assert result.config.trackers == ()


RAISES = """
from crfl_core.extend import Tracker, hookimpl

class Raises(Tracker):
    @hookimpl
    def crfl_round_finished(self, record):
        raise ValueError("disk full")
"""


def test_an_installed_plugin_that_no_config_names_is_never_asked(install: Install, tmp_path: Path) -> None:
    install("noisy-tools", "2.0", {"crfl.trackers": {"raises": "Raises"}}, RAISES)
    crfl_core.run(SMALL, out=tmp_path / "run")


def test_an_exception_in_a_tracker_disables_it_and_the_run_goes_on(install: Install, tmp_path: Path) -> None:
    install("noisy-tools", "2.0", {"crfl.trackers": {"raises": "Raises"}}, RAISES)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        watched = crfl_core.run(SMALL | {"trackers": ["raises"]}, out=tmp_path / "watched")
    assert [one.category for one in caught] == [CrflWarning]
    first, place = str(caught[0].message).split(" (")
    assert first == "tracker 'raises' of noisy-tools 2.0 failed in crfl_round_finished: ValueError: disk full"
    assert re.fullmatch(r".*/noisy_tools\.py:\d+\); the run continues without it", place)
    plain = crfl_core.run(SMALL, out=tmp_path / "plain")
    torch.testing.assert_close(watched.parameters, plain.parameters, rtol=0, atol=0)
    assert watched.metrics == plain.metrics


def test_an_exception_in_any_other_plugin_stops_the_run(install: Install, tmp_path: Path) -> None:
    source = "from crfl_datasets.partitioners.random_splits import Iid\n" + RAISES.replace("(Tracker)", "(Iid)")
    install("noisy-tools", "2.0", {"crfl.partitioners": {"raises": "Raises"}}, source)
    message = r"partitioner 'raises' of noisy-tools 2\.0 failed in crfl_round_finished: ValueError: disk full"
    with pytest.raises(PluginFailure, match=message):
        crfl_core.run(SMALL | {"partition": "raises"}, out=tmp_path / "run")


MISFITS = {
    "misspelt": (
        "crfl_round_finishd(self, record): pass",
        "there is no hook 'crfl_round_finishd' (PLACE): did you mean 'crfl_round_finished'",
    ),
    "unknown argument": (
        "crfl_round_finished(self, recrod): pass",
        "the hook crfl_round_finished has no argument 'recrod' (PLACE): it has run, record, clients",
    ),
    "wrapper": (
        "crfl_round_finished(self, record): yield",
        "crfl_round_finished (PLACE) is a hook wrapper, which a run does not call: write a plain method",
    ),
}


@pytest.mark.parametrize(("method", "reason"), MISFITS.values(), ids=MISFITS)
def test_a_hook_that_does_not_fit_is_an_error_before_anything_is_written(
    install: Install, tmp_path: Path, method: str, reason: str
) -> None:
    source = RAISES.split("    @hookimpl")[0] + f"    @hookimpl\n    def {method}\n"
    install("sloppy-tools", "0.1", {"crfl.trackers": {"sloppy": "Raises"}}, source)
    module = tmp_path / "site-packages" / "sloppy_tools.py"
    place = f"{module}:{module.read_text().splitlines().index('    @hookimpl') + 1}"
    sentence = f"tracker 'sloppy' of sloppy-tools 0.1: {reason.replace('PLACE', place)}"
    with pytest.raises(ConfigError, match=re.escape(f"trackers.0.type = 'sloppy': {sentence}")):
        crfl_core.run(SMALL | {"trackers": ["sloppy"]}, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    (line,) = [line for line in Registry().listing() if line.name == "sloppy"]
    assert line.status == "failed"
    assert line.reason.startswith(sentence)


def test_a_hook_without_its_mark_is_an_error_because_it_would_never_be_called(tmp_path: Path) -> None:
    class Forgetful(Tracker):
        def crfl_round_finished(self, record: RoundRecord) -> None: ...

    with pytest.raises(
        ConfigError,
        match=r"crfl_round_finished \(.*test_hook_implementations\.py:\d+\) would never be called: mark it with",
    ):
        run(tmp_path, Forgetful)


def test_an_instance_beside_the_config_is_checked_as_well(tmp_path: Path) -> None:
    class Sloppy(Tracker):
        @hookimpl
        def crfl_round_finishd(self) -> None: ...

    message = r"there is no hook 'crfl_round_finishd' \(.*test_hook_implementations\.py:\d+\): did you mean"
    with pytest.raises(PluginError, match=message):
        crfl_core.run(SMALL, out=tmp_path / "run", trackers=[Sloppy()])
    with pytest.raises(ConfigError, match=message):
        crfl_core.run(SMALL | {"trackers": [Sloppy()]}, out=tmp_path / "run", plugins={"sloppy": Sloppy})
    assert not (tmp_path / "run").exists()
