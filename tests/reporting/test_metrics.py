"""Figures of merit: each one recomputed from the files that the report is about."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import crfl_core
from crfl_core import ABSTAIN, Curve, RunResult
from crfl_core.extend import Aggregator, CertificateResult, ClientUpdates, Guarantee, RuleResult, State
from crfl_core.reporting import metrics
from crfl_core.reporting import terminal_tables as tables
from crfl_core.reporting.csv_files import COLUMNS
from crfl_core.reporting.metrics import default_grid
from tests.oracle import federation_of, tiny

Rows = list[dict[str, str]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """Noise and clip chosen so that some predictions are certain, some abstain and some are wrong."""
    config = tiny(server={"clip_norm": 4.0, "noise_std": 0.05}, training={"learning_rate": 0.3, "steps": 5})
    return crfl_core.run(config, out=tmp_path_factory.mktemp("metrics") / "run")


def table(run: RunResult, test_set: str) -> Rows:
    """The rows of the certificate's CSV for one test set."""
    with (run.path / "certificates" / "paper.csv").open(newline="") as file:
        return [row for row in csv.DictReader(file) if row["set"] == test_set]


def curve(run: RunResult, test_set: str) -> Curve:
    """The paper's curve on one test set."""
    (found,) = (one for one in run.metrics.curves if one.test_set == test_set)
    return found


@pytest.mark.parametrize("test_set", ["clean", "backdoored"])
def test_certified_accuracy_and_rate_are_shares_of_rows_in_the_csv(run: RunResult, test_set: str) -> None:
    rows, found = table(run, test_set), curve(run, test_set)
    assert len(rows) == found.samples == run.ledger.facts.test_sets[test_set].samples
    for radius, accuracy, rate in zip(found.radii, found.certified_accuracy, found.certified_rate, strict=True):
        certain = [row for row in rows if row["radius"] and float(row["radius"]) >= radius]
        right = [row for row in certain if row["prediction"] == row["label"]]
        assert rate == pytest.approx(len(certain) / len(rows), abs=1e-12)
        assert accuracy == pytest.approx(len(right) / len(rows), abs=1e-12)


@pytest.mark.parametrize("test_set", ["clean", "backdoored"])
def test_curves_fall_and_accuracy_stays_below_rate(run: RunResult, test_set: str) -> None:
    found = curve(run, test_set)
    assert (np.diff(found.certified_rate) <= 0).all()
    assert (np.diff(found.certified_accuracy) <= 0).all()
    assert (np.array(found.certified_accuracy) <= found.certified_rate).all()
    assert found.radii[0] == 0.0
    assert found.certified_rate[0] == pytest.approx(1 - found.abstained)


def test_the_run_is_a_fair_example(run: RunResult) -> None:
    """Otherwise the comparisons above would compare zeros."""
    rows = table(run, "clean")
    assert {row["abstained"] for row in rows} == {"True", "False"}
    assert any(row["prediction"] not in ("", row["label"]) for row in rows)
    assert len(curve(run, "clean").radii) > 5


def test_the_summary_of_a_curve_is_that_of_its_rows(run: RunResult) -> None:
    rows, found = table(run, "clean"), curve(run, "clean")
    radii = [float(row["radius"]) for row in rows if row["radius"]]
    assert found.abstained == pytest.approx(1 - len(radii) / len(rows))
    assert found.median_radius is not None
    assert sum(radius >= found.median_radius for radius in radii) >= len(rows) / 2
    assert sum(radius > found.median_radius for radius in radii) < len(rows) / 2
    assert found.accuracy == pytest.approx(sum(row["prediction"] == row["label"] for row in rows) / len(rows))


def test_the_csv_has_the_documented_columns_and_reads_back_to_the_same_bits(run: RunResult) -> None:
    rows = table(run, "clean")
    (certified,) = (one for one in run.certified if one.test_set == "clean")
    assert tuple(rows[0]) == COLUMNS
    assert [int(row["sample"]) for row in rows] == list(range(60))
    for name in ("p_a", "p_b", "radius", "log_radius"):
        stored = [float(row[name]) if row[name] else math.nan for row in rows]
        np.testing.assert_array_equal(stored, getattr(certified.guarantee, name))
    assert [row["prediction"] == "" for row in rows] == certified.guarantee.abstained.tolist()
    assert {row["conditional"] for row in rows} == {"True"}  # a reproduction, not a proof


def test_accuracies_are_those_of_the_stored_model(run: RunResult) -> None:
    federation = federation_of(run.config.model_dump(mode="json", exclude_none=True))
    for test_set, stored in (("clean", run.metrics.accuracy), ("backdoored", run.metrics.backdoored_accuracy)):
        chosen = federation.test_sets[test_set]
        logits = federation.model.logits(run.parameters[None], chosen.features)[0]
        assert stored == pytest.approx(float((logits.argmax(1) == chosen.labels).double().mean()))


def test_only_proofs_without_conditions_are_proved(run: RunResult) -> None:
    basis = next(one for one in run.metrics.curves if one.test_set == "clean")
    facts = {"level": "client", "radii": (0.0, 1.0), "label": "", "conditional": ()}
    weak = basis.model_copy(update={**facts, "certified_accuracy": (0.9, 0.4)})
    strong = weak.model_copy(update={"certified_accuracy": (0.9, 0.6)})
    doubtful = [weak.model_copy(update={"certified_accuracy": (1.0, 1.0), **one}) for one in DOUBTS]
    found = run.metrics.model_copy(update={"curves": (weak, *doubtful, strong)})
    assert found.proven_accuracy(1) == (0.6, strong)
    assert found.proven_accuracy(2) is None


DOUBTS: tuple[dict[str, object], ...] = (
    {"label": "no proof"},
    {"conditional": ("the data are clean",)},
    {"test_set": "backdoored"},
    {"level": "sample"},
)


def test_a_radius_counts_as_reached_at_itself_and_an_abstention_nowhere() -> None:
    radius = np.array([0.5, 1.0, np.nan, np.inf])
    prediction = np.array([0, 1, ABSTAIN, 1])
    guarantee = Guarantee(prediction, radius, np.log(radius), p_a=np.full(4, 0.9), p_b=np.full(4, 0.1))
    labels = np.array([0, 0, 0, 1])
    certified = CertificateResult(
        "mine", "feature", "clean", "pathwise", ("backward",), "honest", "", (), labels, guarantee
    )
    found = metrics.compute_curve(certified, (0.0, 0.5, 0.6, 1.0, 1e300))
    assert found.certified_rate == (0.75, 0.75, 0.5, 0.5, 0.25)
    assert found.certified_accuracy == (0.5, 0.5, 0.25, 0.25, 0.25)
    assert (found.accuracy, found.abstained, found.median_radius) == (0.5, 0.25, 1.0)


@pytest.mark.parametrize(
    ("radius", "expected"),
    [
        ([np.inf, np.nan, np.nan, np.nan, np.nan, np.nan], None),
        ([np.inf, 2.0, np.nan, np.nan], 2.0),
        ([np.inf, 2.0, 1.0, np.nan, np.nan], 1.0),
        ([3.0, 1.0, 2.0], 2.0),
        ([np.inf], np.inf),
        ([0.0, np.nan], 0.0),
    ],
)
def test_what_is_not_certified_counts_in_the_median(radius: list[float], expected: float | None) -> None:
    """No "median inf" beside a certified rate of 0.167: at least half of all samples reach it, or there is none."""
    found = metrics.median_radius(np.array(radius))
    assert found == expected
    reached = np.array(radius) >= (np.inf if found is None else found)
    assert (reached.mean() >= 0.5) == (found is not None)


class SignVote(Aggregator):
    """Adds up signs, which is not a weighted sum of updates: all of it is an offset."""

    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        moved = 0.01 * updates.values.sign().mean(0)
        return RuleResult(update=moved, weights=torch.zeros(len(updates.values)).double(), offset=moved, state=state)


def test_a_rule_that_puts_everything_into_its_offset_gives_no_client_a_share_and_no_radius(tmp_path: Path) -> None:
    """The attackers moved the model, though no weight says so: neither a share of 0 nor an infinite radius is shown."""
    config = tiny(aggregation=[{"type": "sign-vote"}], certificates=["paper", "pathwise-linear"])
    run = crfl_core.run(config, out=tmp_path / "run", plugins={"sign-vote": SignVote})
    assert all(record.has_unweighted_part for record in run.ledger.rounds)
    found = run.metrics.attackers
    assert found is not None
    assert (found.clients, found.mean_weight_share, found.largest_weight_share) == ((0,), None, None)
    assert set(run.metrics.refused) == {"paper", "pathwise-linear"}
    assert "a part of the aggregate depends on the updates, in no client's weight" in run.metrics.refused["paper"]
    headline = Console(width=110, record=True)
    headline.print(tables.headline("sign-vote", run.metrics))
    assert "not in the weights" in headline.export_text()


def test_radii_of_the_report_can_be_chosen(tmp_path: Path) -> None:
    result = crfl_core.run(tiny(evaluation={"radii": [0.0, 0.5, 100.0]}), out=tmp_path / "run")
    found = curve(result, "clean")
    assert found.radii == (0.0, 0.5, 100.0)
    assert found.certified_rate[-1] == 0.0


def test_accuracy_is_measured_as_often_as_asked_and_always_in_the_end(tmp_path: Path) -> None:
    result = crfl_core.run(tiny(evaluation={"every": 3}), out=tmp_path / "run")
    assert [record.accuracy is not None for record in result.ledger.rounds] == [False, False, True, True]
    assert result.ledger.rounds[-1].accuracy == result.metrics.accuracy


@given(st.lists(st.one_of(st.floats(0, 1e12), st.just(math.nan), st.just(math.inf)), max_size=20))
def test_the_default_grid_is_short_and_covers_every_finite_radius(radii: list[float]) -> None:
    grid = default_grid(np.array(radii, np.float64))
    finite = [radius for radius in radii if math.isfinite(radius)]
    assert grid[0] == 0.0
    assert len(grid) <= 12
    assert list(grid) == sorted(set(grid))
    if finite and max(finite) > 1e-6:
        step = grid[1] - grid[0]
        assert max(finite) < grid[-1] + step * (1 + 1e-6)
