"""What a run reports about its attackers, and how it compares with its clean twin."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

import crfl_core
from crfl_core import RunResult, attack_effect, load_config
from crfl_core.extend import ConfigError
from tests.oracle import federation_of, tiny

SPARSE = ("certificates=[]", "storage.figures=[]")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunResult, RunResult]:
    """A run that was attacked in its final rounds, and the same without the attack."""
    folder = tmp_path_factory.mktemp("pair")
    attack = {"clients": [0, 4], "rounds": [3, 4], "scale": 4.0, "poisoned_per_batch": 6}
    config = load_config(tiny(attack={"type": "model-replacement"} | attack), overrides=SPARSE).config
    return crfl_core.run(config, out=folder / "attacked"), crfl_core.run(config.without_attack(), out=folder / "clean")


def test_the_clean_twin_trains_with_the_same_streams(pair: tuple[RunResult, RunResult]) -> None:
    attacked, clean = pair
    assert clean.config.attack is None
    assert [record.start_norm for record in attacked.ledger.rounds[:3]] == [
        record.start_norm for record in clean.ledger.rounds[:3]
    ]


def test_the_rates_are_those_of_both_models_on_the_same_inputs(pair: tuple[RunResult, RunResult]) -> None:
    attacked, clean = pair
    effect = attack_effect(attacked, clean)
    federation = federation_of(attacked.config.model_dump(mode="json", exclude_none=True))
    found: dict[str, list[float]] = {"clean": [], "backdoored": []}
    for run in pair:
        for name, rates in found.items():
            chosen = federation.test_sets[name]
            classes = federation.model.logits(run.parameters[None], chosen.features)[0].argmax(1)
            wanted: Any = chosen.labels if name == "clean" else 0
            rates.append(float((classes == wanted).double().mean()))
    assert [effect.accuracy, effect.clean_accuracy] == found["clean"]
    assert [effect.success_rate, effect.clean_rate] == found["backdoored"]
    assert (effect.accuracy, effect.clean_accuracy) == (attacked.metrics.accuracy, clean.metrics.accuracy)


def test_runs_that_differ_in_more_than_the_attack_are_not_compared(
    pair: tuple[RunResult, RunResult], tmp_path: Path
) -> None:
    attacked, clean = pair
    other = crfl_core.run(tiny(attack="none", rounds=3), overrides=SPARSE, out=tmp_path / "other")
    with pytest.raises(ConfigError, match="only the attack may differ") as caught:
        attack_effect(attacked, other)
    assert caught.value.key == "rounds"
    for first, second in ((clean, clean), (attacked, attacked), (clean, attacked)):
        with pytest.raises(ConfigError, match="compare a run that was attacked with one that was not"):
            attack_effect(first, second)


def test_the_attackers_share_of_the_weights_is_reported(pair: tuple[RunResult, RunResult]) -> None:
    attacked, clean = pair
    samples = attacked.ledger.facts.samples
    found = attacked.metrics.attackers
    assert found is not None
    assert (found.clients, found.rounds) == ((0, 4), (3, 4))
    share = (samples[0] + samples[4]) / sum(samples)
    assert found.mean_weight_share == pytest.approx(share)
    assert found.largest_weight_share == pytest.approx(share)
    assert clean.metrics.attackers is None


def test_a_defence_that_throws_the_attackers_out_leaves_them_no_weight(tmp_path: Path) -> None:
    attack = {"type": "gaussian", "clients": [0], "rounds": [2, 3], "std": 10.0}
    config = tiny(attack=attack, aggregation=[{"type": "krum", "f": 1}])
    found = crfl_core.run(config, overrides=SPARSE, out=tmp_path / "run").metrics.attackers
    assert found is not None
    assert found.largest_weight_share == 0.0


def test_the_command_line_shows_both(
    pair: tuple[RunResult, RunResult], crfl: Callable[..., CompletedProcess[str]]
) -> None:
    attacked, clean = pair
    assert "attackers' weight" in crfl("show", attacked.path).stdout
    effect = attack_effect(attacked, clean)
    shown = crfl("show", attacked.path, "--clean", clean.path)
    assert shown.returncode == 0
    assert f"{effect.success_rate:.3f}" in shown.stdout
    assert f"{effect.clean_accuracy:.3f}" in shown.stdout
    found = crfl("show", attacked.path, "--clean", clean.path, "--json")
    assert json.loads(found.stdout) == effect.model_dump()
    wrong = crfl("show", clean.path, "--clean", attacked.path)
    assert wrong.returncode == 2
