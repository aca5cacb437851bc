"""The whole backdoor: malicious clients in every round, and triggers found by gradient at test time."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from crfl_attacks.model_replacement import ModelReplacement
from numpy.typing import NDArray
from torch import Tensor

import crfl_core
from crfl_core import RunResult
from crfl_core.certification.formulas import certified_groups, vote_counts
from crfl_core.extend import AttackerView, GroupDistances, State
from crfl_core.runs.predict import predict
from crfl_core.runs.triggers import find_triggers
from tests.oracle import federation_of, tiny


def grouped(**changes: Any) -> dict[str, Any]:
    """Nine clients, each with a model of its own, on 300 digits."""
    defaults: dict[str, Any] = {
        "dataset": {"type": "digits", "test_samples": 120},
        "partition": {"type": "iid", "clients": 9},
        "groups": {"count": 9},
        "model": {"type": "softmax", "features": [{"type": "unit-ball", "radius": 3.0}]},
        "training": {"learning_rate": 2.0, "steps": 40, "batch_size": 32},
        "attack": "none",
        "threat": {"clients": 1, "rounds": [1]},
        "certificates": ["group-vote", "backdoor"],
    }
    return tiny(**(defaults | changes))


class Turning(ModelReplacement):
    """Submits whatever moves the model of its group away, as far as it can go."""

    def craft(self, known: AttackerView, state: State) -> Tensor:
        generator = torch.Generator().manual_seed(known.round.number)
        noise = torch.randn(known.own_updates.shape, generator=generator, dtype=known.own_updates.dtype)
        return -30.0 * known.own_updates + noise


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    return crfl_core.run(grouped(), out=tmp_path_factory.mktemp("backdoor") / "clean")


def attack_tests(
    run: RunResult, x: Tensor, predicted: NDArray[np.int64], norms: NDArray[np.float64]
) -> NDArray[np.bool_]:
    """Return which predictions a trigger of these norms changes, on an attacked run."""
    federation = federation_of(grouped())
    targets = torch.from_numpy(predicted), torch.from_numpy(norms)
    inputs = find_triggers(federation.maps, federation.new_model(), run.parameters.double(), x, *targets)
    classes = predict(run, inputs.numpy(), scaled=True).classes
    changed: NDArray[np.bool_] = classes != predicted
    return changed


def test_no_certified_prediction_changes_under_malicious_clients_and_triggers(clean: RunResult, tmp_path: Path) -> None:
    answer = next(one for one in clean.certified if (one.level, one.test_set) == ("backdoor", "clean"))
    x = federation_of(grouped()).data.test_x.double()
    predicted = answer.by_clients[0].prediction
    attacked = 0
    flipped_beyond = 0
    for clients in (0, 1, 2, 3):
        radius = answer.by_clients[clients].radius
        run = clean
        if clients:
            attack = {"type": "turning", "clients": list(range(clients)), "rounds": {"first": 1}}
            out = tmp_path / str(clients)
            run = crfl_core.run(grouped(attack=attack), out=out, plugins={"turning": Turning})
        certified = np.isfinite(radius)
        norms = np.where(certified, radius, 0.0)
        assert not (attack_tests(run, x, predicted, norms) & certified).any()
        attacked += int(certified.sum())
        flipped_beyond += int((attack_tests(run, x, predicted, 4.0 * norms) & certified).sum())
    assert attacked > 200
    assert flipped_beyond > 60  # or the triggers would show nothing


def test_without_a_trigger_it_is_the_vote_of_groups(clean: RunResult) -> None:
    votes = clean.votes(clean.certifier.questions[1].request, clean.config.votes)["clean"].expect(GroupDistances)
    tolerated = certified_groups(vote_counts(votes.ballots, 10))
    answer = next(one for one in clean.certified if (one.level, one.test_set) == ("backdoor", "clean"))
    for clients, guarantee in enumerate(answer.by_clients):
        np.testing.assert_array_equal(~np.isnan(guarantee.radius), tolerated >= clients)


def test_a_distance_is_how_far_features_must_move_to_change_a_group(clean: RunResult) -> None:
    votes = clean.votes(clean.certifier.questions[1].request, clean.config.votes)["clean"].expect(GroupDistances)
    features = federation_of(grouped()).test_sets["clean"].features.double()
    parts = clean.layout.unflatten(clean.parameters.double())
    for group, (weight, bias) in enumerate(zip(parts["weight"], parts["bias"], strict=True)):
        first = torch.from_numpy(votes.ballots[:, group])[:, None]
        distance = torch.from_numpy(votes.distances[:, group])[:, None]
        changed = torch.zeros(len(features), dtype=torch.bool)
        for rival in range(10):
            apart = weight[first[:, 0]] - weight[rival]
            direction = apart / torch.linalg.vector_norm(apart, dim=1, keepdim=True).clamp(min=1e-12)
            before = (features - (1 - 1e-9) * distance * direction) @ weight.T + bias
            after = (features - (1 + 1e-9) * distance * direction) @ weight.T + bias
            assert (before.gather(1, first) >= before.amax(1, keepdim=True)).all()
            changed |= after.gather(1, first)[:, 0] < after.amax(1)
        assert changed.all()


def test_the_table_is_in_every_file_and_figure(clean: RunResult) -> None:
    curve = next(one for one in clean.metrics.curves if one.level == "backdoor")
    assert curve.by_clients[0][0] == pytest.approx(clean.metrics.accuracy)
    assert all(one >= two for row in curve.by_clients for one, two in itertools.pairwise(row))
    lines = (clean.path / "certificates" / "backdoor-by-clients.csv").read_text().splitlines()
    assert lines[0] == "set,clients,trigger_norm,certified_accuracy"
    assert len(lines) == 1 + sum(len(one.by_clients) * len(one.radii) for one in clean.metrics.curves)
    figure = clean.plot("backdoor")
    assert figure.axes[0].get_xlabel() == "norm of the trigger on the test input"
    with pytest.raises(crfl_core.CrflError, match="add 'backdoor' to certificates"):
        crfl_core.run(grouped(certificates=["group-vote"], rounds=1), out=clean.path.parent / "plain").plot("backdoor")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"model": {"type": "softmax", "features": [{"type": "unit-sphere"}]}},
            "use 'unit-ball' instead of 'unit-sphere'",
        ),
        ({"model": {"type": "mlp", "hidden": [4]}}, "set model.type = 'softmax'"),
        ({"groups": {"count": 9, "weights": [2] + 8 * [1]}}, "remove groups.weights"),
        ({"groups": {"count": 9, "by": "subsets", "size": 2}}, "groups.by = 'deal'"),
    ],
    ids=["no constant", "not linear", "weights", "subsets"],
)
def test_runs_without_the_assumptions_are_refused_with_the_remedy(
    changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    run = crfl_core.run(grouped(rounds=1, **changes), out=tmp_path / "run")
    assert reason in run.metrics.refused["backdoor"]
