"""A crash in a plugin costs the round that it came in and nothing else, and the run says how to resume it."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from crfl_engines.local import Local
from pydantic import PrivateAttr

import crfl_core
from crfl_core import RunResult, load_config
from crfl_core.extend import (
    ClientUpdates,
    CrflWarning,
    LocalUpdates,
    Plugin,
    Registry,
    Round,
    RoundRecord,
    RuleResult,
    Stage,
    StageResult,
    State,
    TrainingTask,
    hookimpl,
)
from crfl_core.runs.checkpoints import read_checkpoint
from crfl_core.runs.run_directory import RunDirectory
from tests.oracle import Momentum, contents, stopping, tiny

Install = Callable[..., None]

CONFIG = tiny(
    rounds=5,
    aggregation=["passing", "momentum"],
    attack=tiny()["attack"] | {"rounds": {"first": 2}},
    engine={"type": "own-engine", "threads": 1},
    partition={"type": "dirichlet", "clients": 8, "alpha": 0.7},
    storage={"checkpoint_seconds": 1000, "figures": []},
)
"""Only a crash writes a checkpoint here."""


class Passing(Stage):
    """Hands everything on, and counts rounds in its state."""

    def transform(self, updates: ClientUpdates, state: State) -> StageResult:
        calls = state.get("calls", torch.zeros(())) + 1
        return StageResult(updates.values.clone(), torch.ones_like(updates.values[:, 0]), state={"calls": calls})


class OwnEngine(Local):
    """The local one under another name."""


PLUGINS: dict[str, type[Plugin]] = {"passing": Passing, "momentum": Momentum, "own-engine": OwnEngine}


class CrashingStage(Passing):
    """Fails in round 4."""

    def transform(self, updates: ClientUpdates, state: State) -> StageResult:
        if updates.round.number == 4:
            raise ZeroDivisionError("stage")
        return super().transform(updates, state)


class CrashingEngine(OwnEngine):
    """Fails in the middle of round 4."""

    def train(self, task: TrainingTask) -> Iterator[LocalUpdates]:
        for trained in super().train(task):
            yield trained
            if task.number == 4:
                raise ConnectionError("engine")


class CrashingHook(Passing):
    """Fails when round 4 begins."""

    @hookimpl
    def crfl_round_started(self, current: Round) -> None:
        if current.number == 4:
            raise OSError("hook")


class Lying(Momentum):
    """Reports other weights in round 4."""

    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        found = super().aggregate(updates, state)
        return RuleResult(found.update, found.weights / 2, found.offset) if updates.round.number == 4 else found


CRASHES: dict[str, dict[str, type[Plugin]]] = {
    "stage": {"passing": CrashingStage},
    "rule": {"momentum": stopping(4, RuntimeError("rule"))},
    "interrupt": {"momentum": stopping(4, KeyboardInterrupt())},
    "lie": {"momentum": Lying},
    "engine": {"own-engine": CrashingEngine},
    "hook": {"passing": CrashingHook},
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """The run without an interrupt."""
    return crfl_core.run(CONFIG, out=tmp_path_factory.mktemp("whole") / "run", plugins=PLUGINS)


def crash(path: Path, plugins: dict[str, type[Plugin]]) -> BaseException:
    """The error with which a run ends."""
    with pytest.raises((crfl_core.extend.PluginFailure, KeyboardInterrupt)) as caught:
        crfl_core.run(CONFIG, out=path, plugins=PLUGINS | plugins)
    return caught.value


@pytest.mark.parametrize("where", CRASHES)
def test_a_crash_writes_a_checkpoint_of_all_finished_rounds(where: str, whole: RunResult, tmp_path: Path) -> None:
    """And what is resumed from it is, bit for bit, the run that never crashed."""
    path = tmp_path / "run"
    error = crash(path, CRASHES[where])
    saved = read_checkpoint(RunDirectory(path))
    assert saved is not None
    assert saved.round == 3
    assert float(saved.tensors["aggregation.0/calls"]) == 3.0
    assert len(RunDirectory(path).read_rounds()) == 3
    assert error.__notes__ == [f"resume with `crfl run {path}`"]
    resumed, expected = contents(crfl_core.resume(path, plugins=PLUGINS).path), contents(whole.path)
    told = {"ledger.json", "manifest.json", "status.json"} if where == "hook" else set()  # that hooks watched
    assert {name for name in expected if resumed[name] != expected[name]} <= told
    assert resumed.keys() == expected.keys()


def test_a_crash_in_the_first_round_leaves_nothing_to_save_and_can_be_resumed(whole: RunResult, tmp_path: Path) -> None:
    error = crash(tmp_path / "run", {"momentum": stopping(1, RuntimeError("early"))})
    assert not (tmp_path / "run" / "checkpoint").exists()
    assert error.__notes__ == [f"resume with `crfl run {tmp_path / 'run'}`"]
    assert contents(crfl_core.resume(tmp_path / "run", plugins=PLUGINS).path) == contents(whole.path)


def test_a_run_may_crash_again_and_again(whole: RunResult, tmp_path: Path) -> None:
    for number in (2, 3, 3, 5):
        crash(tmp_path / "run", {"momentum": stopping(number, RuntimeError("again"))})
        saved = read_checkpoint(RunDirectory(tmp_path / "run"))
        assert saved is not None
        assert saved.round == number - 1
    assert contents(crfl_core.resume(tmp_path / "run", plugins=PLUGINS).path) == contents(whole.path)


def test_an_error_before_training_says_nothing_about_resuming(tmp_path: Path) -> None:
    with pytest.raises(crfl_core.extend.ConfigError) as caught:
        crfl_core.run(CONFIG | {"rounds": 0}, out=tmp_path / "run", plugins=PLUGINS)
    assert not getattr(caught.value, "__notes__", [])
    assert not (tmp_path / "run").exists()


class Remembering(Passing):
    """Prepares something when the run starts, and uses it in every round: hooks and methods are of one instance."""

    _factor: float = PrivateAttr(default=0.0)
    _rounds: int = PrivateAttr(default=0)

    @hookimpl
    def crfl_run_started(self) -> None:
        self._factor += 1.0

    @hookimpl
    def crfl_round_finished(self, record: RoundRecord) -> None:
        self._rounds += 1
        assert self._rounds == record.round

    def transform(self, updates: ClientUpdates, state: State) -> StageResult:
        seen.append((self._factor, self._rounds))
        return super().transform(updates, state)


seen: list[tuple[float, int]] = []


def test_what_a_hook_sets_is_seen_by_the_methods_and_by_no_other_run(tmp_path: Path) -> None:
    """Twice with the same config object, whose instances stay untouched."""
    plugins = PLUGINS | {"passing": Remembering}
    config = load_config(CONFIG, registry=Registry(plugins)).config
    for name in ("one", "other"):
        seen.clear()
        crfl_core.run(config, out=tmp_path / name, plugins=plugins)
        assert seen == [(1.0, number) for number in range(5)]
    assert config.aggregation[0]._factor == 0.0  # type: ignore[attr-defined]


VERSIONED = """
from tests.oracle import Momentum

class Rule(Momentum):
    def aggregate(self, updates, state):
        if updates.round.number == CRASHES:
            raise RuntimeError("not yet")
        return super().aggregate(updates, state)

CRASHES = {number}
"""


@pytest.fixture
def upgrade(install: Install, tmp_path: Path) -> Callable[[str, int], None]:
    """Puts another version of a package in the place of what is there; it crashes in one round."""

    def put(version: str, number: int) -> None:
        for old in (tmp_path / "site-packages").glob("robust_tools-*.dist-info"):
            shutil.rmtree(old)
        sys.modules.pop("robust_tools", None)
        install(
            "robust-tools", version, {"crfl.aggregators": {"rule": "Rule"}}, VERSIONED.replace("{number}", str(number))
        )
        importlib.invalidate_caches()

    return put


def rule_of(environment: dict[str, Any]) -> tuple[int, str]:
    """From which round on a version of the rule played."""
    (version,) = [plugin["version"] for plugin in environment["plugins"] if plugin["name"] == "rule"]
    return environment["from_round"], version


def test_resuming_with_another_version_warns_and_the_run_says_who_played_which_rounds(
    upgrade: Callable[[str, int], None], tmp_path: Path
) -> None:
    config = CONFIG | {"aggregation": ["rule"], "engine": {"type": "local", "threads": 1}}
    path = tmp_path / "run"
    upgrade("1.0", 3)
    with pytest.raises(crfl_core.extend.PluginFailure):
        crfl_core.run(config, out=path)
    written = json.loads((path / "environment.json").read_text())
    assert (rule_of(written), "earlier" in written) == ((1, "1.0"), False)

    upgrade("2.0", 5)
    message = (
        f"{path}: resumed with aggregator 'rule' of robust-tools 2.0, before it was that of robust-tools 1.0; "
        "environment.json says which versions played which rounds"
    )
    with pytest.warns(CrflWarning, match=re.escape(message)), pytest.raises(crfl_core.extend.PluginFailure):
        crfl_core.resume(path, trust=True)
    written = json.loads((path / "environment.json").read_text())
    assert (rule_of(written), [*map(rule_of, written["earlier"])]) == ((3, "2.0"), [(1, "1.0")])

    upgrade("2.0", 0)
    changed = f"{path}: resumed with aggregator 'rule' of robust-tools 2.0, whose code has changed since; "
    with pytest.warns(CrflWarning, match=re.escape(changed)):
        crfl_core.resume(path, trust=True)
    written = json.loads((path / "environment.json").read_text())
    assert (rule_of(written), [*map(rule_of, written["earlier"])]) == ((5, "2.0"), [(1, "1.0"), (3, "2.0")])


def test_a_version_that_played_no_round_is_not_on_record(upgrade: Callable[[str, int], None], tmp_path: Path) -> None:
    config = CONFIG | {"aggregation": ["rule"], "engine": {"type": "local", "threads": 1}}
    path = tmp_path / "run"
    for version, crashes in (("1.0", 3), ("2.0", 3), ("3.0", 0)):
        upgrade(version, crashes)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                crfl_core.run(config, out=path)
            except crfl_core.extend.PluginFailure:
                continue
    written = json.loads((path / "environment.json").read_text())
    assert (rule_of(written), [*map(rule_of, written["earlier"])]) == ((3, "3.0"), [(1, "1.0")])


RENAMED = """
from crfl_core.extend import Aggregator, RuleResult

class Rule(Aggregator):
    def aggregate(self, updates, state):
        if updates.round.number == {number}:
            raise RuntimeError("not yet")
        weights = updates.values.new_full((len(updates.values),), 1 / len(updates.values))
        mean = weights @ updates.values
        before = state["{entry}"] if updates.round.number > 1 else 0 * mean
        return RuleResult(mean + before / 2, weights, offset=before / 2, state={{"{entry}": mean}})
"""


def test_a_state_of_another_layout_is_a_sentence(install: Install, tmp_path: Path) -> None:
    """The author of a rule renamed an entry of its state under the same version."""
    config = CONFIG | {"aggregation": ["rule"], "engine": {"type": "local", "threads": 1}}
    for entry, number in (("velocity", 3), ("speed", 0)):
        sys.modules.pop("robust_tools", None)
        shutil.rmtree(tmp_path / "site-packages" / "robust_tools-1.0.dist-info", ignore_errors=True)
        code = RENAMED.format(entry=entry, number=number)
        install("robust-tools", "1.0", {"crfl.aggregators": {"rule": "Rule"}}, code)
        importlib.invalidate_caches()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with pytest.raises(crfl_core.extend.PluginFailure) as caught:
                crfl_core.run(config, out=tmp_path / "run")
    assert "the state that the run kept has no 'speed' but 'velocity': the plugin's code has changed since" in str(
        caught.value
    )
