"""Comparisons say what statistics textbooks say, and pair what shares its seeds."""

from __future__ import annotations

import shutil
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
from crfl_experiments.comparison import (
    CurveKey,
    Difference,
    Run,
    RunNumbers,
    Statistic,
    choose_radii,
    common_radii,
    compare_runs,
    find_finished_runs,
    read_runs,
)
from crfl_experiments.comparison_figure import comparison_figure, lines_along_key, lines_over_radii, make_line
from crfl_experiments.sweeps import SweepResult, sweep
from crfl_reports.figures import Line
from scipy import stats

from crfl_core import run
from crfl_core.errors import CrflError, CrflWarning
from crfl_core.reporting.config_diff import UNSET, differences
from tests.experiments.support import SMALL


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished sweep: two noise levels, three seeds. Shared: copy it before you change anything."""
    path = tmp_path_factory.mktemp("sweep") / "small"
    sweep(SMALL, vary={"server.noise_std": [0.01, 0.2]}, seeds=3, out=path, workers=1)
    return path


def test_mean_spread_and_number() -> None:
    found = Statistic.of([1.0, 2.0, 6.0])
    assert (found.mean, found.n) == (3.0, 3)
    assert found.spread == pytest.approx(float(np.std([1, 2, 6], ddof=1)))
    assert Statistic.of([2.0]) == Statistic(2.0, None, 1)


def test_the_interval_of_a_difference_is_that_of_students_t() -> None:
    rng = np.random.default_rng(0)
    ours = rng.uniform(0.4, 0.5, size=5)
    theirs = rng.uniform(0.4, 0.5, size=5)
    found = Difference.of(list(zip(ours.tolist(), theirs.tolist(), strict=True)))
    expected = stats.ttest_rel(ours, theirs).confidence_interval(0.95)
    assert found.low == pytest.approx(float(expected.low))
    assert found.high == pytest.approx(float(expected.high))
    assert found.mean == pytest.approx(fmean(ours - theirs))
    assert Difference.of([(0.9, 0.4)]) == Difference(0.5, None, None, 1)


def test_two_seeds_and_equal_differences_have_no_interval() -> None:
    assert Difference.of([(0.9, 0.4), (0.8, 0.5)]).low is None
    assert Difference.of([(1.0, 1.0)] * 3) == Difference(0.0, None, None, 3)


def test_intervals_and_bands_stay_where_shares_are() -> None:
    far = Difference.of([(1.0, 0.0), (0.9, 0.0), (0.1, 0.9)])
    assert (far.low, far.high) == (-1.0, 1.0)
    wide = make_line(Line, "", [0], [Statistic(0.9, 0.5, 3)])
    assert (wide.low, wide.high) == ([0.4], [1.0])
    assert make_line(Line, "", [0], [Statistic(0.9, 0.5, 2)]).low is None


def test_points_are_what_seeds_have_in_common(done: Path) -> None:
    comparison = compare_runs(read_runs([done]))
    assert comparison.keys == ("server.noise_std",)
    assert [point.settings for point in comparison.points] == [{"server.noise_std": 0.01}, {"server.noise_std": 0.2}]
    quiet, loud = comparison.points
    accuracies = [[one.numbers.metrics.accuracy for one in point.runs] for point in comparison.points]
    assert quiet.statistics["accuracy"] == Statistic.of(accuracies[0])
    assert quiet.differences == {}
    assert loud.differences["accuracy"] == Difference.of(list(zip(accuracies[1], accuracies[0], strict=True)))


def test_a_copy_of_a_run_is_no_further_seed(done: Path, tmp_path: Path) -> None:
    first, other = (one.path for one in SweepResult(done).cells[:2])
    copy = shutil.copytree(first, tmp_path / "copy")
    with pytest.warns(CrflWarning, match="copy: is the same run as .*, and counts once"):
        runs = find_finished_runs([first, copy, other])
    (point,) = compare_runs(runs).points
    assert point.statistics["accuracy"].n == 2


def test_runs_are_compared_as_the_cells_of_a_sweep_are(done: Path) -> None:
    cells = sorted((done / "cells").iterdir())
    beside, inside = compare_runs(find_finished_runs(cells)), compare_runs(find_finished_runs([done]))
    assert beside.keys == inside.keys == ("server.noise_std",)
    assert [point.statistics for point in beside.points] == [point.statistics for point in inside.points]
    with pytest.warns(CrflWarning, match="counts once"):
        assert len(compare_runs(find_finished_runs([done, cells[0]])).points) == 2


def test_only_shared_seeds_are_paired(done: Path) -> None:
    runs = read_runs([done])
    few = [one for one in runs if one.point["server.noise_std"] == 0.01 or one.seed != (("seed", 1),)]
    _, loud = compare_runs(few).points
    assert loud.differences["accuracy"].n == 2
    apart = [Run(one.title, one.point, (("seed", number),), one.numbers) for number, one in enumerate(runs)]
    assert compare_runs(apart).points[1].differences == {}


def test_certified_accuracy_is_counted_at_radii_that_a_curve_does_not_have(done: Path) -> None:
    for path in sorted((done / "cells").iterdir()):
        measured = RunNumbers(path)
        for question, curve in measured.curves.items():
            radii = [radius for radius in curve.radii if np.isfinite(radius)]
            between = [(low + high) / 2 for low, high in pairwise(radii)]
            counted = measured.certified(question, [*radii, *between])
            assert counted is not None
            assert counted[: len(radii)] == pytest.approx(curve.certified_accuracy[: len(radii)], abs=1e-12)
            pairs = zip(counted[len(radii) :], curve.certified_accuracy, curve.certified_accuracy[1:], strict=False)
            assert all(low <= middle <= high for middle, high, low in pairs)
        assert measured.certified(CurveKey("none", "client", "clean"), [1.0]) is None


def test_a_few_radii_are_chosen() -> None:
    assert choose_radii([0, 1, 2, 3, 4, 5], "client") == [1, 2, 3]
    assert choose_radii([0.0, 0.1, 0.2], "feature") == [0.1, 0.2]
    assert len(choose_radii([0.1 * number for number in range(11)], "feature")) == 3


def test_configs_differ_in_keys_that_a_person_would_name() -> None:
    one = {"name": "a", "seed": 0, "aggregation": [{"type": "fedavg"}], "server": {"noise_std": 0.1}}
    other = {"name": "b", "seed": 1, "aggregation": [{"type": "rfa", "steps": 4}], "server": {"noise_std": 0.1}}
    assert differences([one, other]) == [
        {"seed": 0, "aggregation.0.type": "fedavg"},
        {"seed": 1, "aggregation.0.type": "rfa"},
    ]
    assert differences([one, one]) == [{}, {}]


def test_strengths_of_one_attack_stay_apart_beside_another_attack() -> None:
    weak, strong = ({"attack": {"type": "scaled", "scale": scale, "clients": [0]}} for scale in (2, 9))
    other = {"attack": {"type": "flipped", "share": 0.5, "clients": [1]}}
    assert differences([weak, strong, other, {}]) == [
        {"attack.type": "scaled", "attack.scale": 2},
        {"attack.type": "scaled", "attack.scale": 9},
        {"attack.type": "flipped", "attack.scale": UNSET},
        {"attack.type": UNSET, "attack.scale": UNSET},
    ]


def test_an_unfinished_or_damaged_run_is_refused_with_a_remedy(done: Path, tmp_path: Path) -> None:
    with pytest.raises(CrflError, match="not a run directory"):
        read_runs([tmp_path])
    alone = run({**SMALL, "seed": 7}, out=tmp_path / "alone").path
    (alone / "metrics.json").write_text("{}")
    with pytest.raises(CrflError, match=r"metrics.json: damaged.*leave it out of the comparison"):
        read_runs([alone, *(done / "cells").iterdir()])


def test_lines_have_bands_over_seeds(done: Path) -> None:
    runs = read_runs([done])
    question = next(iter(runs[0].numbers.curves))
    first, second = lines_over_radii(runs, question)
    radii = common_radii([one.numbers.curves[question] for one in runs])
    assert np.array_equal(first.x, radii)
    assert np.array_equal(second.x, radii)
    assert first.name == "server.noise_std=0.01"
    assert first.low is not None
    (line,) = lines_along_key(compare_runs(runs), "server.noise_std", "accuracy")
    assert np.array_equal(line.x, [0.01, 0.2])
    assert comparison_figure(runs).axes
    assert SweepResult(done).plot(against="server.noise_std").axes[0].get_xlabel() == "server.noise_std"
    with pytest.raises(CrflError, match=r"--against rounds: was not varied: what was: server.noise_std"):
        lines_along_key(compare_runs(runs), "rounds", "accuracy")
    with pytest.raises(CrflError, match="--measure speed: there is none: there are accuracy"):
        lines_along_key(compare_runs(runs), "server.noise_std", "speed")
