"""`crfl reproduce`, with the embedded digits in the place of MNIST."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from crfl_core import load_config
from crfl_core.extend import ConfigError
from crfl_paper import reproduce
from crfl_paper.api import names, select
from crfl_paper.book import BOOK, DATASETS, swept
from crfl_paper.sweeping import SWEEPS, Question, combined, sweep_file
from crfl_sweeps.cells import define
from crfl_sweeps.reuse import plans

Crfl = Callable[..., CompletedProcess[str]]
ROOT = Path(__file__).parents[2]
DIGITS = (
    'dataset={type="digits"}',
    "attack.trigger.features=[60, 61, 62, 63]",
    "rounds=12",
    "training.steps=2",
    "training.batch_size=20",
    "votes.models=100",
)


def test_every_figure_has_a_sweep_file_and_every_file_a_figure() -> None:
    for dataset in DATASETS:
        files = {path.stem for path in (SWEEPS / dataset).glob("*.toml")} - {"table1"}
        assert files == {figure.name for figure in swept(dataset)}
        for figure in swept(dataset):
            cells = define(sweep_file(dataset, figure.name)).cells()
            assert all(figure.axis in cell.columns for cell in cells)


def told(path: Path) -> dict[str, Any]:
    """A config without what is measured and kept. Two ways to say how much is poisoned are one."""
    found = load_config(path).config.model_dump(exclude={"storage", "evaluation", "votes"})
    for name in ("poison_ratio", "poisoned_per_batch"):
        found["attack"].pop(name, None)
    return found


@pytest.mark.parametrize("dataset", DATASETS)
def test_the_tables_are_those_of_the_examples(dataset: str) -> None:
    table, example = told(SWEEPS / dataset / "table1.toml"), told(ROOT / "examples" / f"{dataset}.toml")
    assert table == example
    assert load_config(SWEEPS / dataset / "table1.toml").config.votes.noise_std == 0.01


def test_figures_share_training_and_fast_ones_keep_the_papers_radii() -> None:
    figures = [figure.name for figure in swept("mnist")]
    planned = plans(combined("mnist", figures, Question(1)).cells())
    assert sum(plan.shares == "nothing" for plan in planned) <= 32 < len(planned)
    slow, fast = (combined("mnist", figures, Question(1, fast)).cells() for fast in (False, True))
    for one, other in zip(slow, fast, strict=True):
        first, second = (cell.config.training for cell in (one, other))
        assert first.steps * first.learning_rate == pytest.approx(second.steps * second.learning_rate)  # type: ignore[operator]


def test_a_figure_is_run_judged_and_drawn(tmp_path: Path) -> None:
    found = reproduce(["mnist/gamma", "phi"], seeds=2, out=tmp_path, overrides=DIGITS, workers=1)
    assert not found.failures
    gamma, phi = found.sections
    assert [finding.verdict for finding in (*gamma.findings, *phi.findings)] == ["holds", "holds"]
    text = found.path.read_text()
    for section in found.sections:
        assert f"pictures/reproduction/{section.picture}" in text
        assert (tmp_path / "pictures/reproduction" / section.picture).read_bytes().startswith(b"<?xml")
    assert "> the stronger the attack, the smaller radius can be certified" in text
    assert "- verdict: **holds**" in text
    again = reproduce(["mnist/gamma"], seeds=2, out=tmp_path, overrides=DIGITS, workers=1)
    assert again.sections[0] == gamma


def test_data_that_are_missing_are_skipped_with_the_command_that_brings_them(
    crfl: Crfl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CRFL_DATA_DIR", str(tmp_path))
    done = crfl("reproduce", "emnist/gamma", "--seeds", "1")
    assert done.returncode == 0
    assert "not measured: data missing, run `crfl data fetch emnist`" in done.stdout
    told = json.loads(crfl("reproduce", "emnist/gamma", "--json").stdout)
    assert told["figures"][0]["findings"][0]["verdict"] == "not measured"
    assert "not measured" in (tmp_path / "reproduction/reproduction.md").read_text()


def test_figures_are_listed_and_unknown_ones_are_refused(crfl: Crfl) -> None:
    listed = crfl("reproduce", "--list").stdout
    assert all(name in listed for name in names())
    assert json.loads(crfl("reproduce", "--list", "--json").stdout) == names()
    assert "there is no figure 'zeta': `crfl reproduce --list`" in crfl("reproduce", "zeta").stderr


def test_figures_are_chosen_by_dataset_by_name_or_by_both() -> None:
    assert [dataset for dataset, _ in select(["sigma"])[0]] == list(DATASETS)
    assert [figure.name for _, figure in select(["mnist"])[0]] == [one.name for one in BOOK]
    assert select(["mnist/sigma", "phi"])[1]
    with pytest.raises(ConfigError, match="no figure 'mnist/none'"):
        select(["mnist/none"])
