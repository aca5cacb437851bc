"""What the server reaches alone, on the labelled samples that it reserved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from crfl_experiments.comparison import compare_runs, read_runs
from crfl_experiments.run_list import list_runs
from crfl_experiments.sweeps.results import measure_rows
from crfl_reports.pages.experiment_table import MEASURES
from crfl_reports.pages.sections import measured
from crfl_reports.pages.words import percent
from crfl_trackers.run_summary import final_metrics
from sklearn.linear_model import LogisticRegression

import crfl_core
from crfl_core.training.trusted_baseline import score_trusted_samples
from tests.oracle import federation_of, tiny


def reserving(**changes: Any) -> dict[str, Any]:
    """Nine clients with a model each, and a server with some samples of its own."""
    defaults: dict[str, Any] = {
        "dataset": {"type": "digits", "test_samples": 200},
        "partition": {"type": "iid", "clients": 9},
        "groups": {"count": 9},
        "training": {"learning_rate": 0.5, "steps": 10, "weight_decay": 0.01},
        "reserve": {"root": 60, "validation": 40},
        "attack": "none",
        "threat": {"clients": 1, "rounds": [1]},
        "certificates": ["group-vote"],
    }
    return tiny(**(defaults | changes))


def test_it_is_the_regression_on_all_reserved_samples() -> None:
    federation = federation_of(reserving().copy())
    found = score_trusted_samples(federation)
    assert found is not None
    kept = [federation.reserve[name] for name in ("root", "validation")]
    x = torch.cat([part.features for part in kept]).double().numpy()
    y = torch.cat([part.labels for part in kept]).numpy()
    # The penalty of scikit-learn is ||w||^2 / (2 C) beside the sum of losses; ours is also on the bias.
    inputs = np.hstack([x, np.ones((len(x), 1))])
    peer = LogisticRegression(C=1 / (0.01 * len(x)), fit_intercept=False, max_iter=10_000, tol=1e-10).fit(inputs, y)
    chosen = federation.test_sets["clean"]
    tested = np.hstack([chosen.features.double().numpy(), np.ones((len(chosen.labels), 1))])
    assert found.samples == 100
    assert found.accuracy == pytest.approx(peer.score(tested, chosen.labels.numpy()), abs=0.006)


def test_every_table_has_it(tmp_path: Path) -> None:
    run = crfl_core.run(reserving(), out=tmp_path / "run")
    baseline = run.metrics.trusted_baseline
    assert baseline is not None
    comparison = compare_runs(read_runs([tmp_path / "run"]))
    assert comparison.points[0].statistics["accuracy of the server alone"].mean == baseline.accuracy
    assert "accuracy of the server alone" in comparison.short_measures
    rows = {row["measure"]: row["value"] for row in measure_rows(run.metrics)}
    assert rows["accuracy_of_server_alone"] == baseline.accuracy
    assert final_metrics(run)["final/accuracy_of_server_alone"] == baseline.accuracy
    (listed,) = list_runs(tmp_path)
    assert listed.server_alone == baseline.accuracy
    assert ("server_alone", percent(baseline.accuracy)) in {(key, value) for key, _, value in measured(run.metrics)}
    assert MEASURES["server alone"](run) == (baseline.accuracy, "")
    without = crfl_core.run(reserving(reserve={}), out=tmp_path / "without")
    assert "accuracy_of_server_alone" not in {row["measure"] for row in measure_rows(without.metrics)}
    assert MEASURES["server alone"](without) is None


def test_labels_of_another_dataset_count() -> None:
    """The classes of all sets but a curator's are checked to be those of the run."""
    other = {"samples": 70, "dataset": {"type": "digits"}}
    found = score_trusted_samples(federation_of(reserving(reserve={"root": other, "curator": 30})))
    assert found is not None
    assert found.samples == 100


def test_it_has_a_penalty_of_its_own() -> None:
    one, other = (
        score_trusted_samples(federation_of(reserving(reserve={"root": 60, "weight_decay": decay})))
        for decay in (0.01, 30.0)
    )
    assert one is not None
    assert other is not None
    assert one == score_trusted_samples(federation_of(reserving(reserve={"root": 60})))
    assert other.accuracy < one.accuracy


def test_a_server_without_samples_has_none() -> None:
    assert score_trusted_samples(federation_of(reserving(reserve={}))) is None


def test_a_curators_samples_go_through_the_feature_maps() -> None:
    features = [{"type": "random-fourier", "outputs": 30}]
    federation = federation_of(reserving(reserve={"curator": 80}, model={"type": "softmax", "features": features}))
    found = score_trusted_samples(federation)
    assert found is not None
    assert found.samples == 80
    assert found.accuracy > 0.3


def test_a_network_is_trained_as_well() -> None:
    found = score_trusted_samples(federation_of(reserving(model={"type": "mlp", "hidden": [16]})))
    assert found is not None
    assert found.accuracy > 0.5


def test_a_run_says_up_to_how_many_clients_the_federation_adds_something(tmp_path: Path) -> None:
    run = crfl_core.run(reserving(), out=tmp_path / "run")
    baseline = run.metrics.trusted_baseline
    assert baseline is not None
    curve = next(one for one in run.metrics.curves if one.test_set == "clean")
    above = [
        radius
        for radius, accuracy in zip(curve.radii, curve.certified_accuracy, strict=True)
        if accuracy > baseline.accuracy
    ]
    assert run.metrics.clients_above_baseline() == max(above, default=None)
    without = crfl_core.run(reserving(reserve={}), out=tmp_path / "without")
    assert without.metrics.trusted_baseline is None
