"""Distances to the clean twin: those of two runs that kept their models, without a second run and without models."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import crfl_core
from crfl_core import RunResult, extend, load_config
from crfl_core.errors import StoreError
from crfl_core.extend import ConfigError, Plugin
from crfl_core.runs.run_directory import RunDirectory
from tests.oracle import Momentum, contents, stopping, tiny

PLUGINS: dict[str, type[Plugin]] = {"momentum": Momentum}
ATTACK = {"type": "model-replacement", "clients": [0, 4], "rounds": [3, 5], "scale": 3.0, "poisoned_per_batch": 3}
PARTS: dict[str, Any] = {
    "rounds": 6,
    "training": {"learning_rate": 0.2, "steps": 4, "batch_size": 16, "participation": 0.75},
    "aggregation": [{"type": "momentum"}],
    "attack": ATTACK,
    "certificates": [],
}


def config(keep: str, **changes: Any) -> dict[str, Any]:
    """A run whose rule remembers rounds, in which some clients are absent."""
    return tiny(**PARTS | {"storage": {"figures": [], "checkpoint_seconds": 0, "keep": keep}} | changes)


def run(folder: Path, keep: str, **changes: Any) -> RunResult:
    """That run."""
    return crfl_core.run(config(keep, **changes), out=folder, plugins=PLUGINS)


def clean(folder: Path, **changes: Any) -> RunResult:
    """Its clean twin, with all its models."""
    return run(folder, "models", **changes | {"attack": "none"})


def between(attacked: RunResult, other: RunResult) -> list[float]:
    """What two runs come to that kept their models."""
    found = []
    for number in range(1, attacked.config.rounds + 1):
        one, two = (each.directory.read_resampled(number)["parameters"] for each in (attacked, other))
        found.append(float(np.linalg.norm(one.astype(np.float64) - two.astype(np.float64))))
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """The run without an interruption."""
    return run(tmp_path_factory.mktemp("whole") / "run", "distances")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"model": {"type": "mlp", "hidden": [6]}},
        {"aggregation": ["rfa"]},
        {"aggregation": [{"type": "norm-bound"}, {"type": "multi-krum", "f": 1}]},
        {"attack": {**ATTACK, "type": "neurotoxin", "rounds": {"first": 1}}},
        {"attack": {"type": "alie", "clients": [0, 4], "rounds": {"first": 2}}},
        {"server": {"clip_norm": 4.0, "noise_std": 0.02, "optimiser": "adam"}},
        {"groups": {"count": 2}, "aggregation": ["fedavg"]},
    ],
    ids=["a state", "mlp", "rfa", "krum", "a memory", "crafted", "optimiser", "groups"],
)
def test_the_distances_are_those_of_two_runs_that_kept_their_models(changes: dict[str, Any], tmp_path: Path) -> None:
    measured = run(tmp_path / "run", "distances", **changes)
    kept, twin = run(tmp_path / "kept", "models", **changes), clean(tmp_path / "twin", **changes)
    found = measured.ledger.twin_distances
    assert found == pytest.approx(between(kept, twin), rel=1e-12, abs=0)
    first = min(measured.ledger.facts.attack_rounds)
    assert not any(found[: first - 1])
    assert found[first - 1] > 0
    assert not (measured.path / "resample").exists()
    for file in ("model.safetensors", "clients.npz"):
        assert (measured.path / file).read_bytes() == (kept.path / file).read_bytes()


def test_the_models_of_a_twin_are_not_trained_again(
    tmp_path: Path, whole: RunResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    twin = clean(tmp_path / "twin")
    monkeypatch.setattr("crfl_core.training.clean_twin.separate_session", None)
    found = crfl_core.run(config("distances"), out=tmp_path / "run", plugins=PLUGINS, twin=twin)
    assert contents(found.path) == contents(whole.path)


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5, 6])
def test_a_run_that_stopped_in_any_round_has_the_same_distances(number: int, whole: RunResult, tmp_path: Path) -> None:
    """Before the attack, in it, and when the twin is another model whose rule has a state of its own."""
    with pytest.raises(KeyboardInterrupt):
        crfl_core.run(
            config("distances"), out=tmp_path / "run", plugins={"momentum": stopping(number, KeyboardInterrupt())}
        )
    resumed = crfl_core.resume(tmp_path / "run", plugins=PLUGINS)
    assert contents(resumed.path) == contents(whole.path)


def test_what_is_saved_of_the_twin_matters(whole: RunResult, tmp_path: Path) -> None:
    """Without it the twin is played from the first round on, with another model it ends elsewhere."""
    for name in ("gone", "other"):
        with pytest.raises(KeyboardInterrupt):
            crfl_core.run(
                config("distances"), out=tmp_path / name, plugins={"momentum": stopping(5, KeyboardInterrupt())}
            )
        directory = RunDirectory(tmp_path / name)
        tensors, notes = directory.read_tensors_and_notes("checkpoint/state.safetensors")
        assert tensors["twin/parameters"].shape == tensors["parameters"].shape
        assert int(tensors["twin/aggregation.0/rounds"]) == 4
        if name == "gone":
            tensors = {key: value for key, value in tensors.items() if not key.startswith("twin/")}
        else:
            tensors["twin/parameters"] = tensors["parameters"]
        directory.write_tensors("checkpoint/state.safetensors", tensors, notes)
    assert contents(crfl_core.resume(tmp_path / "gone", plugins=PLUGINS).path) == contents(whole.path)
    assert crfl_core.resume(tmp_path / "other", plugins=PLUGINS).ledger.twin_distances != whole.ledger.twin_distances


def test_distances_are_part_of_what_is_verified(whole: RunResult, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(whole.path, copy)
    lines = (copy / "rounds.jsonl").read_text().splitlines()
    record = json.loads(lines[3])
    record["distance"] /= 2
    (copy / "rounds.jsonl").write_text("\n".join([*lines[:3], json.dumps(record), *lines[4:], ""]))
    with pytest.raises(StoreError, match=r"rounds\.jsonl: damaged: it is not what the run wrote"):
        RunResult(copy).ledger  # noqa: B018


def test_a_run_draws_its_distances_alone(whole: RunResult) -> None:
    (line,) = whole.plot("closeness").axes[0].get_lines()[:1]
    assert np.asarray(line.get_ydata()).tolist() == list(whole.ledger.twin_distances)


def test_a_ledger_of_before_has_no_distances(whole: RunResult, tmp_path: Path) -> None:
    older = run(tmp_path / "run", "needed")
    assert older.ledger.twin_distances == ()
    assert '"distance":null' in (older.path / "rounds.jsonl").read_text()
    old_line = json.loads(whole.ledger.rounds[0].model_dump_json())
    del old_line["distance"]
    assert extend.RoundRecord.model_validate(old_line).distance is None


def test_without_an_attack_there_is_nothing_to_be_distant_from() -> None:
    with pytest.raises(ConfigError, match="needs an attack, because distances are measured to a clean twin"):
        load_config(config("distances", attack="none", aggregation=["fedavg"]))
    attacked = load_config(config("distances", aggregation=["fedavg"])).config
    assert attacked.without_attack().storage.keep == "needed"


class TestATwinThatIsNone:
    """What is given as a twin is looked at before anything is written."""

    @pytest.mark.parametrize(
        ("changes", "given", "message"),
        [
            ({}, {"attack": ATTACK}, "is not a clean twin because it was attacked"),
            ({}, {"seed": 2}, r"seed: is not that of .*, so it is not a clean twin: only the attack may differ"),
            ({}, {"storage": {"figures": []}}, r"models of rounds were not kept: set storage\.keep = 'models'"),
            ({"storage": {"keep": "needed"}}, {}, r"storage\.keep: a twin is for runs that keep distances to it"),
        ],
    )
    def test_is_refused(self, changes: dict[str, Any], given: dict[str, Any], message: str, tmp_path: Path) -> None:
        twin = run(tmp_path / "twin", "models", **{"attack": "none"} | given)
        with pytest.raises(ConfigError, match=message):
            crfl_core.run(config("distances", **changes), out=tmp_path / "run", plugins=PLUGINS, twin=twin)
        assert not (tmp_path / "run").exists()
