"""The figures of finished runs: what they show is what the run directories hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from crfl_reports.figures import Grid
from crfl_reports.gallery.run_groups import groups
from crfl_reports.gallery.training import effective_weights
from matplotlib.figure import Figure
from numpy.typing import NDArray

import crfl_core
from crfl_core import FIGURES, RunResult, plot
from crfl_core.extend import ConfigError
from tests.oracle import tiny
from tests.reports.support import assert_presentable, texts

KEPT: dict[str, Any] = {"figures": [], "keep": "models"}


TABLE = {"type": "features", "features": [1, 2, 5]}


ATTACK = {"type": "model-replacement", "clients": [0], "rounds": [2], "scale": 1.5, "poisoned_per_batch": 3}


def certified(**changes: Any) -> dict[str, Any]:
    """A config with a certificate that answers at every level, at radii that depend on the seed."""
    parts = {
        "dtype": "float64",
        "rounds": 6,
        "partition": {"type": "iid", "clients": 20},
        "model": {"type": "softmax", "features": {"type": "unit-ball", "radius": 4.0}},
        "training": {"learning_rate": 0.3, "steps": 3, "weight_decay": 0.01},
        "server": {"clip_norm": 30.0, "noise_std": 0.02},
        "attack": ATTACK,
        "certificates": ["pathwise-linear"],
    }
    return tiny(**parts | changes)


class Runs(NamedTuple):
    """Two seeds of an attacked run, their clean twins, and the first one under another rule."""

    attacked: tuple[RunResult, RunResult]
    clean: tuple[RunResult, RunResult]
    other: RunResult


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("runs")

    def run(name: str, **changes: Any) -> RunResult:
        return crfl_core.run(certified(storage=KEPT, **changes), out=folder / name)

    return Runs(
        (run("seed-1"), run("seed-2", seed=2)),
        (run("clean-1", attack="none"), run("clean-2", attack="none", seed=2)),
        run("median", aggregation="median"),
    )


def lines_of(figure: Figure, panel: int = 0) -> list[tuple[list[float], list[float]]]:
    """The points of every line of a panel."""
    return [
        (np.asarray(line.get_xdata(), float).tolist(), np.asarray(line.get_ydata(), float).tolist())
        for line in figure.axes[panel].get_lines()
    ]


class TestEveryFigure:
    @pytest.mark.parametrize("name", sorted(set(FIGURES) - {"closeness", "matrix", "backdoor", "collective"}))
    def test_one_run_can_be_drawn(self, name: str, runs: Runs) -> None:
        assert_presentable(runs.attacked[0].plot(name))

    @pytest.mark.parametrize("name", ["closeness", "matrix"])
    def test_some_need_more_runs_and_say_so(self, name: str, runs: Runs) -> None:
        with pytest.raises(ConfigError, match=r"twin is not among these runs|different attacks or defences"):
            runs.attacked[0].plot(name)
        assert_presentable(runs.attacked[0].plot(name, [runs.clean[0]]))

    @pytest.mark.parametrize("name", ["weights", "partition", "samples", "flips"])
    def test_some_show_one_run_only(self, name: str, runs: Runs) -> None:
        with pytest.raises(ConfigError, match=f"figure '{name}' shows one run, found 2"):
            plot(runs.attacked, name)

    def test_a_misspelt_name_is_corrected(self, runs: Runs) -> None:
        with pytest.raises(ConfigError, match="no figure 'curve': did you mean 'curves'"):
            runs.attacked[0].plot("curve")

    def test_a_figure_needs_a_run(self) -> None:
        with pytest.raises(ConfigError, match="needs a run"):
            plot([])


class TestCurves:
    def test_a_line_is_a_curve_of_the_metrics(self, runs: Runs) -> None:
        run = runs.attacked[0]
        curve = next(one for one in run.metrics.curves if (one.level, one.test_set) == ("client", "clean"))
        figure = run.plot("curves")
        panel = next(n for n, axes in enumerate(figure.axes) if axes.get_xlabel() == "number of malicious clients")
        drawn = lines_of(figure, panel)
        finite = [number for number, radius in enumerate(curve.radii) if np.isfinite(radius)]
        assert [curve.certified_accuracy[n] for n in finite] in [y[: len(finite)] for _, y in drawn]
        assert figure.axes[panel + 1].get_ylabel().startswith("certified rate")

    def test_seeds_become_a_mean_in_a_band(self, runs: Runs) -> None:
        figure = plot(runs.attacked, "curves")
        assert "mean of 2 seeds, bands from the smallest to the largest" in texts(figure)
        at_zero = [
            next(c for c in run.metrics.curves if (c.level, c.test_set) == ("client", "clean")).certified_accuracy[0]
            for run in runs.attacked
        ]
        panel = next(axes for axes in figure.axes if axes.get_xlabel() == "number of malicious clients")
        line = panel.get_lines()[0]
        assert np.asarray(line.get_ydata(), float)[0] == pytest.approx(np.mean(at_zero))
        corners = np.asarray(panel.collections[0].get_paths()[0].vertices, float)
        at_start = corners[corners[:, 0] == 0, 1]
        assert (at_start.min(), at_start.max()) == pytest.approx((min(at_zero), max(at_zero)))

    def test_seeds_with_grids_of_their_own_are_compared_at_the_same_radii(self, runs: Runs) -> None:
        grids = [{one.level: one.radii for one in run.metrics.curves} for run in runs.attacked]
        assert grids[0] != grids[1]
        for axes in plot(runs.attacked, "curves").axes:
            assert all(np.all(np.diff(np.asarray(line.get_xdata(), float)) > 0) for line in axes.get_lines())

    def test_other_experiments_are_told_apart_by_what_differs(self, runs: Runs) -> None:
        shown = texts(plot([runs.attacked[0], runs.clean[0]], "rounds"))
        assert {"model-replacement", "no attack"} <= {*shown}

    def test_a_run_without_guarantees_says_so(self, tmp_path: Path) -> None:
        run = crfl_core.run(tiny(certificates=[]), out=tmp_path / "run")
        with pytest.raises(ConfigError, match="nothing was certified: `crfl show"):
            run.plot("curves")


class TestTraining:
    def test_accuracy_and_success_are_those_of_the_ledger(self, runs: Runs) -> None:
        run = runs.attacked[0]
        (rounds, accuracy), (_, success) = lines_of(run.plot("rounds"))
        assert rounds == [1, 2, 3, 4, 5, 6]
        assert accuracy == [record.accuracy for record in run.ledger.rounds]
        assert success == [record.success_rate for record in run.ledger.rounds]
        assert run.metrics.backdoor is not None
        assert success[-1] == run.metrics.backdoor.success_rate
        assert "attacked rounds" in texts(run.plot("rounds"))

    def test_no_backdoor_succeeds_without_an_attack(self, runs: Runs) -> None:
        assert {record.success_rate for record in runs.clean[0].ledger.rounds} == {None}
        assert len(lines_of(runs.clean[0].plot("rounds"))) == 1

    def test_weights_are_those_of_the_ledger(self, runs: Runs) -> None:
        ledger = runs.attacked[0].ledger
        weights, attacking = effective_weights(ledger)
        assert weights.shape == (20, 6)
        np.testing.assert_array_equal(weights[:, 1], ledger.clients.of_round(2).weight)
        assert np.argwhere(attacking).tolist() == [[0, 1]]

    def test_who_did_not_take_part_has_no_weight(self, tmp_path: Path) -> None:
        config = tiny(training={"learning_rate": 0.2, "participation": 0.5}, certificates=[], attack="none")
        weights, _ = effective_weights(crfl_core.run(config, out=tmp_path / "run").ledger)
        assert np.isfinite(weights).sum(axis=0).tolist() == [4] * 4


class TestCloseness:
    def test_models_are_the_same_until_the_attack_and_not_behind_it(self, runs: Runs) -> None:
        ((rounds, distances),) = lines_of(runs.attacked[0].plot("closeness", [runs.clean[0]]))
        assert rounds == [1, 2, 3, 4, 5, 6]
        assert distances[0] == 0
        assert min(distances[1:]) > 0
        last = runs.attacked[0].parameters - runs.clean[0].parameters
        assert distances[-1] == pytest.approx(float(last.norm()))

    def test_every_seed_is_compared_with_its_own_twin(self, runs: Runs) -> None:
        ((_, mean),) = lines_of(plot([*runs.attacked, *reversed(runs.clean)], "closeness"))
        alone = [
            lines_of(run.plot("closeness", [twin]))[0][1] for run, twin in zip(runs.attacked, runs.clean, strict=True)
        ]
        np.testing.assert_allclose(mean, np.mean(alone, axis=0))

    def test_another_run_is_no_twin(self, runs: Runs) -> None:
        with pytest.raises(ConfigError, match="clean twin is not among these runs: train it with `crfl run"):
            runs.attacked[0].plot("closeness", [runs.clean[1]])

    def test_models_must_have_been_kept(self, runs: Runs, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"run: models of rounds were not kept: set storage\.keep = 'models'"):
            crfl_core.run(certified(), out=tmp_path / "run").plot("closeness", [runs.clean[0]])

    def test_kept_models_can_be_started_from_again(self, runs: Runs) -> None:
        assert runs.attacked[0].ledger.facts.resampled == (1, 2, 3, 4, 5, 6)
        tail = "certificates=[{type='tail', continuations=8, selection=2, resample_from=3}]"
        answer = crfl_core.certify(runs.attacked[0], [tail])
        assert (answer.needs, {curve.certificate for curve in answer.curves}) == ("continuations", {"tail"})


class TestInputs:
    def test_captions_say_what_the_model_takes_inputs_for(self, runs: Runs) -> None:
        shown = texts(runs.attacked[0].plot("samples"))
        assert "model-replacement: the target is 0" in shown
        assert {"test inputs", "with the trigger", "difference", "attackers train on"} <= {*shown}
        assert sum(text.startswith("taken for ") for text in shown) == 12
        assert any(text.startswith("client 0: ") and text.endswith("→ 0") for text in shown)

    def test_inputs_of_the_target_class_have_their_clean_twins_too(self, tmp_path: Path) -> None:
        attack = ATTACK | {"backdoored_classes": "all"}
        run = crfl_core.run(tiny(attack=attack, certificates=[]), out=tmp_path / "run")
        assert {"test inputs", "with the trigger", "difference"} <= {*texts(run.plot("samples"))}
        shown = run.plot("flips").axes[0].get_images()[0].get_array()
        image: NDArray[np.float64] = np.ma.filled(np.ma.asarray(shown), 0)
        assert image.sum() == run.ledger.facts.test_sets["clean"].samples

    def test_inputs_of_a_table_are_bars(self, tmp_path: Path) -> None:
        data = {"type": "synthetic", "train_samples": 200, "test_samples": 50, "features": 12}
        attack = {"type": "model-replacement", "clients": [0], "rounds": [2], "trigger": TABLE}
        run = crfl_core.run(tiny(dataset=data, certificates=[], attack=attack), out=tmp_path / "run")
        assert_presentable(run.plot("samples"))
        assert "value of the feature, scaled" in texts(run.plot("samples"))

    def test_an_attack_without_a_trigger_shows_its_own_inputs(self, tmp_path: Path) -> None:
        attack = {"type": "edge-case", "clients": [0], "rounds": [2], "tail": 0.5, "target": 6}
        run = crfl_core.run(tiny(attack=attack, certificates=[]), out=tmp_path / "run")
        assert "inputs of the attack" in texts(run.plot("samples"))
        assert "true class" in texts(run.plot("flips"))

    @pytest.mark.parametrize("name", ["samples", "flips"])
    def test_there_is_nothing_to_show_without_a_backdoor(self, name: str, runs: Runs, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=f"the run has no attack, so figure '{name}' has nothing to show"):
            runs.clean[0].plot(name)
        attack = {"type": "sign-flip", "clients": [0], "rounds": [2]}
        run = crfl_core.run(tiny(attack=attack, certificates=[]), out=tmp_path / "run")
        with pytest.raises(ConfigError, match=f"'sign-flip' has no backdoor, which figure '{name}' shows"):
            run.plot(name)

    def test_flips_count_every_backdoored_input_once(self, runs: Runs) -> None:
        run = runs.attacked[0]
        shown = run.plot("flips")
        image: NDArray[np.float64] = np.ma.filled(np.ma.asarray(shown.axes[0].get_images()[0].get_array()), 0)
        assert run.metrics.backdoor is not None
        assert image.sum() == run.metrics.backdoor.samples
        assert image[:, 0].sum() / image.sum() == pytest.approx(run.metrics.backdoor.success_rate)


class TestMatrix:
    def test_cells_are_the_metrics_of_the_runs(self, runs: Runs) -> None:
        figure = plot([*runs.attacked, runs.other], "matrix")
        success = np.asarray(figure.axes[0].get_images()[0].get_array())
        rates = [run.metrics.backdoor.success_rate for run in runs.attacked if run.metrics.backdoor is not None]
        assert success[0, 0] == pytest.approx(100 * np.mean(rates))
        assert {"model-replacement", "means of 1 to 2 runs", "median"} <= {*texts(figure)}

    def test_different_experiments_are_not_averaged(self, runs: Runs, tmp_path: Path) -> None:
        shorter = crfl_core.run(certified(rounds=3), out=tmp_path / "short")
        with pytest.raises(ConfigError, match=r"differ in more than seeds, rounds = 6 / rounds = 3: leave some out"):
            plot([*runs.attacked, shorter, runs.other], "matrix")

    def test_strengths_of_an_attack_are_rows_of_their_own(self, runs: Runs, tmp_path: Path) -> None:
        stronger = crfl_core.run(certified(attack=ATTACK | {"scale": 3.0}), out=tmp_path / "strong")
        grid = FIGURES["matrix"].shows([*runs.attacked, stronger, runs.clean[0]])
        assert isinstance(grid, Grid)
        assert grid.rows == ["model-replacement, scale = 1.5", "model-replacement, scale = 3", "none"]
        assert grid.tables[0].counts is not None
        assert np.ravel(grid.tables[0].counts).tolist() == [2, 1, 0]

    def test_means_come_with_their_spread(self, runs: Runs) -> None:
        grid = FIGURES["matrix"].shows([*runs.attacked, runs.other])
        assert isinstance(grid, Grid)
        tables = {table.title: table for table in grid.tables}
        accuracies = [100 * run.metrics.accuracy for run in runs.attacked]
        accuracy = tables["accuracy"]
        assert accuracy.numbers[0, 0] == pytest.approx(np.mean(accuracies))
        assert (np.asarray(accuracy.low)[0, 0], np.asarray(accuracy.high)[0, 0]) == (min(accuracies), max(accuracies))
        assert_presentable(grid.figure())


class TestTogether:
    def test_the_settings_that_differ_are_the_name_of_a_group(self, runs: Runs, tmp_path: Path) -> None:
        stronger = crfl_core.run(certified(attack=ATTACK | {"scale": 3.0}), out=tmp_path / "strong")
        found = groups([*runs.attacked, stronger, runs.clean[0]])
        labels = ["model-replacement, attack.scale = 1.5", "model-replacement, attack.scale = 3", "no attack"]
        assert [group.label for group in found] == labels
        assert [len(group.runs) for group in found] == [2, 1, 1]

    def test_runs_that_differ_in_much_are_called_by_their_folders(self, runs: Runs, tmp_path: Path) -> None:
        other = {"training": {"learning_rate": 0.2, "steps": 2, "weight_decay": 0.02}, "rounds": 5}
        far = crfl_core.run(certified(**other), out=tmp_path / "far")
        assert [group.label for group in groups([runs.attacked[0], far])] == ["seed-1", "far"]
