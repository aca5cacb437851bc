"""What the server reaches alone, on the labelled samples that it reserved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

import crfl_core
from crfl_core.training.evaluation import score_trusted_samples
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
