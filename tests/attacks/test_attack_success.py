"""The presets in examples/attacks: each attack works without a defence, and some defence stops it."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from statistics import fmean

import pytest

from crfl_core import AttackEffect, RunResult, attack_effect, load_config, run
from crfl_core.extend import FileDataset, Registry
from examples import matrix

ROOT = Path(__file__).parents[2]

BACKDOORS = {
    "model-replacement": "rfa",
    "fixed-frequency": "norm-bound + weak-noise",
    "dba": "dnc",
    "constrain-and-scale": "trimmed-mean",
    "pgd": "fltrust",
    "edge-case": "update-cap",
    "semantic": "foolsgold",
    "label-flip": "multi-krum",
    "neurotoxin": "flame",
}
"""Attacks with a target, each with a defence that stops it."""

UNTARGETED = {
    "sign-flip": "per-layer krum",
    "inner-product-manipulation": "foolsgold",
    "gaussian": "krum",
    "certificate-seeking": "update-cap",
    "adaptive": "ten groups",
    "alie": None,
}
"""Attacks without one; nothing in the matrix stops the last."""

HIDING = {
    "min-max": ("multi-krum", "trimmed-mean", "median"),
    "min-sum": ("multi-krum", "trimmed-mean", "median"),
    "adaptive": ("krum", "multi-krum", "median"),
}
"""Attacks that are made for rules which look for outliers, with those that they were published against."""

SEEDS = (0, 1, 2)

EffectOf = Callable[..., AttackEffect]


@pytest.fixture(scope="module")
def effect_of(tmp_path_factory: pytest.TempPathFactory) -> EffectOf:
    """What a preset does under a defence, beside the clean twin; nothing is trained twice."""
    folder = tmp_path_factory.mktemp("matrix")
    twins: dict[str, RunResult] = {}

    @cache
    def effect(attack: str, defence: str, seed: int = 0) -> AttackEffect:
        ((_, (found,)),) = matrix.effects([attack], [defence], folder, twins=twins, seeds=[seed])
        return found

    return effect


def test_there_is_a_preset_for_every_attack() -> None:
    assert set(matrix.ATTACKS) == {*BACKDOORS, *UNTARGETED, *HIDING, "paper"}
    types = {load_config(matrix.PRESETS / f"{name}.toml").config.attack for name in matrix.ATTACKS}
    assert {attack.configured_as for attack in types if attack} == set(Registry().names("attack"))
    names = [load_config(path).config.name for path in matrix.PRESETS.glob("*.toml")]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("attack", BACKDOORS)
def test_a_backdoor_gets_in_without_a_defence_and_the_main_task_is_kept(attack: str, effect_of: EffectOf) -> None:
    for seed in SEEDS:
        effect = effect_of(attack, "none", seed)
        assert effect.success_rate is not None
        assert effect.clean_rate is not None
        assert effect.success_rate >= 0.8
        assert effect.clean_rate < 0.05
        assert effect.accuracy > effect.clean_accuracy - 0.13  # all sevens, which are flipped, are 0.12 of the digits


@pytest.mark.parametrize(("attack", "defence"), BACKDOORS.items())
def test_a_defence_keeps_the_backdoor_out(attack: str, defence: str, effect_of: EffectOf) -> None:
    effect = effect_of(attack, defence)
    assert effect.success_rate is not None
    assert effect.success_rate < 0.05
    assert effect.accuracy > 0.9


@pytest.mark.parametrize("attack", UNTARGETED)
def test_an_untargeted_attack_ruins_the_model_without_a_defence(attack: str, effect_of: EffectOf) -> None:
    effect = effect_of(attack, "none")
    assert effect.success_rate is None
    assert effect.clean_accuracy > 0.9
    assert effect.accuracy < (0.75 if attack == "alie" else 0.4)


@pytest.mark.parametrize(
    ("attack", "defence"), [(attack, defence) for attack, defences in HIDING.items() for defence in defences]
)
def test_an_attack_that_hides_costs_a_tenth_under_the_rules_that_it_was_made_for(
    attack: str, defence: str, effect_of: EffectOf
) -> None:
    found = [effect_of(attack, defence, seed) for seed in SEEDS]
    assert fmean(effect.clean_accuracy - effect.accuracy for effect in found) >= 0.1


@pytest.mark.parametrize(
    ("attack", "defence"), [(attack, defence) for attack, defence in UNTARGETED.items() if defence]
)
def test_a_defence_keeps_the_model_alive(attack: str, defence: str, effect_of: EffectOf) -> None:
    assert effect_of(attack, defence).accuracy > 0.9


def test_at_the_strength_of_the_paper_the_backdoor_does_not_take(effect_of: EffectOf) -> None:
    effect = effect_of("paper", "none")
    assert effect.success_rate == pytest.approx(effect.clean_rate, abs=0.02)
    assert effect.accuracy == pytest.approx(effect.clean_accuracy, abs=0.02)


@pytest.mark.parametrize("attack", ["model-replacement", "dba"])
def test_clipping_and_noise_do_not_stop_an_attack_near_the_end(attack: str, effect_of: EffectOf) -> None:
    effect = effect_of(attack, "clip + noise")
    assert effect.success_rate is not None
    assert effect.success_rate > 0.75


def test_a_preset_is_certified_like_any_run(tmp_path: Path) -> None:
    overrides = ["rounds=3", "attack.rounds=[2]", "attack.steps=5", "votes.models=20", "storage.figures=[]"]
    result = run(matrix.PRESETS / "dba.toml", overrides=overrides, out=tmp_path / "run")
    assert {curve.test_set for curve in result.metrics.curves} == {"clean", "backdoored"}
    assert result.threat.delta is None  # what the certificate answers
    assert result.threat.clients == (0, 1, 2, 3)


QUICK = ["--set", "rounds=2", "--set", "dataset.train_samples=300", "--set", "attack.rounds=[1]", "--jobs", "2"]


def test_the_matrix_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    attacks = ["gaussian", "model-replacement"]
    matrix.main(["--attacks", *attacks, "--defences", "none", "median", "--seeds", "0", *QUICK])
    header, line, *rows = capsys.readouterr().out.splitlines()
    assert header == "| attack | none | median |"
    assert line == "| --- | --- | --- |"
    assert re.fullmatch(r"\| gaussian( \| \d+ \(\d+\)){2} \|", rows[0])
    assert re.fullmatch(r"\| model-replacement( \| \d+ \(\d+\), \d+ \(\d+\)){2} \|", rows[1])
    assert len(rows) == 2


def test_wide_tables_are_cut() -> None:
    effect = AttackEffect(accuracy=0.5, clean_accuracy=0.9, success_rate=None, clean_rate=None)
    defences = tuple(matrix.DEFENCES)
    found = {("gaussian", defence): [effect] for defence in defences}
    first, second = matrix.tables(found, ["gaussian"], defences, ranges=False).split("\n\n")
    for part, names in ((first, defences[: matrix.COLUMNS]), (second, defences[matrix.COLUMNS :])):
        header, _, row = part.splitlines()
        assert header == f"| attack | {' | '.join(names)} |"
        assert row == "| gaussian |" + " 50 (90) |" * len(names)


def test_several_seeds_give_a_mean_and_a_range(capsys: pytest.CaptureFixture[str]) -> None:
    matrix.main(
        ["--attacks", "gaussian", "--defences", "none", "--seeds", "0", "1", "--ranges", *QUICK, "--set", "rounds=1"]
    )
    row = capsys.readouterr().out.splitlines()[-1]
    found = re.fullmatch(r"\| gaussian \| (\d+) \[(\d+)\.\.(\d+)\] \((\d+) \[(\d+)\.\.(\d+)\]\) \|", row)
    assert found is not None
    mean, least, most, clean_mean, clean_least, clean_most = map(int, found.groups())
    assert least <= mean <= most
    assert clean_least < clean_mean < clean_most  # another seed is another run


def test_the_stronger_mnist_attack_takes_within_few_rounds_too(tmp_path: Path) -> None:
    path = matrix.PRESETS / "mnist.toml"
    config = load_config(path, overrides=[*matrix.QUICK, "rounds=6", "attack.rounds={first=4}"]).config
    assert isinstance(config.dataset, FileDataset)
    source = config.dataset.source()
    if not all(source.find(file.name) for file in source.files):
        pytest.skip("set CRFL_DATA_DIR to a folder with the files of mnist")
    clean = run(config.without_attack(), out=tmp_path / "clean")
    effect = attack_effect(run(config, out=tmp_path / "attacked"), clean)
    assert effect.success_rate is not None
    assert effect.clean_rate is not None
    assert effect.success_rate > effect.clean_rate + 0.5  # after six rounds a clean model is still a poor one
    assert effect.accuracy > effect.clean_accuracy


def test_the_page_about_attacks_shows_the_whole_matrix() -> None:
    page = (ROOT / "docs" / "attacks.md").read_text(encoding="utf-8")
    names = tuple(matrix.DEFENCES)
    for part in (names[: matrix.COLUMNS], names[matrix.COLUMNS :]):
        assert f"| attack | {' | '.join(part)} |" in page
    rows = re.findall(r"^\| ([a-z-]+) \|(?: \d+ \(\d+\)(?:, \d+ \(\d+\))? \|)+$", page, re.MULTILINE)
    assert tuple(rows) == 2 * matrix.ATTACKS
    for name in Registry().names("attack"):
        assert f"`{name}`" in page


def test_the_page_about_attacks_gives_every_preset_over_three_seeds() -> None:
    page = (ROOT / "docs" / "attacks.md").read_text(encoding="utf-8")
    rate = r"\d+ \[\d+\.\.\d+\]"
    pair = rf"{rate} \({rate}\)"
    rows = re.findall(rf"^\| ([a-z-]+) \| {pair}(?:, {pair})? \|$", page, re.MULTILINE)
    assert tuple(rows) == matrix.ATTACKS
    assert "--defences none --ranges" in page
