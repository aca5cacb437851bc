"""BaFFLe: what validators measure, when a model is rejected, and that the history survives a resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from crfl_aggregators.baffle import Baffle, class_errors, outlier_factors
from sklearn.neighbors import LocalOutlierFactor
from torch import Tensor

import crfl_core
from crfl_core import extend
from crfl_core.extend import (
    Attack,
    ClientUpdates,
    FederatedData,
    Plugin,
    Stage,
    StageResult,
    State,
    Streams,
    Tracker,
    hookimpl,
)
from tests.aggregators.support import gaussian, updates_of
from tests.oracle import contents


def attacked(**changes: Any) -> dict[str, Any]:
    """Twenty clients on digits; one of them replaces the model in round 13 of 16. The first eight are trusted."""
    config: dict[str, Any] = {
        "rounds": 16,
        "dataset": {"type": "digits"},
        "partition": {"type": "iid", "clients": 20},
        "training": {"learning_rate": 0.3, "steps": 5, "batch_size": 16},
        "server": {"clip_norm": 15.0, "noise_std": 0.01},
        "aggregation": [{"type": "baffle", "lookback": 8}, {"type": "fedavg"}],
        "attack": {
            "type": "model-replacement",
            "clients": [0],
            "rounds": [13],
            "scale": "replace",
            "poisoned_per_batch": 8,
            "trigger": {"type": "pixels", "norm": 2.0},
        },
        "votes": {"models": 16},
        "certificates": [],
        "engine": {"type": "local", "threads": 1},
    }
    return config | changes


def test_errors_are_counted_by_true_and_by_predicted_class() -> None:
    """Of four samples one 0 is taken for 2 and the only 1 for 0."""
    labels = torch.tensor([0, 0, 1, 2])
    errors = class_errors(torch.tensor([[0, 2, 0, 2], [0, 0, 1, 2]]), labels, 3)
    assert errors.tolist() == [[0.25, 0.25, 0.0, 0.25, 0.0, 0.25], [0.0] * 6]


@pytest.mark.parametrize("seed", range(4))
def test_outlier_factors_agree_with_scikit_learn(seed: int) -> None:
    history, new = gaussian(12, 4, seed), 2 * gaussian(1, 4, seed + 50)[0]
    usual, found = outlier_factors(history, new, neighbours=5, resolution=0.0)
    reference = LocalOutlierFactor(n_neighbors=5, novelty=True).fit(history)
    np.testing.assert_allclose(usual, -reference.negative_outlier_factor_, rtol=1e-6)
    assert found == pytest.approx(-float(reference.score_samples(new[None])[0]), rel=1e-6)


def test_a_change_below_the_resolution_is_not_an_outlier() -> None:
    """A model that had stopped to change would otherwise be stuck: any change is infinitely far from none at all."""
    still = np.zeros((8, 3))
    usual, found = outlier_factors(still, np.asarray([0.01, 0.0, 0.0]), neighbours=4, resolution=0.02)
    assert usual.tolist() == [1.0] * 8
    assert found == 1.0
    assert outlier_factors(still, np.asarray([1.0, 0.0, 0.0]), neighbours=4, resolution=0.02)[1] == pytest.approx(50.0)


def test_the_stage_hands_on_everything_and_remembers_the_last_models() -> None:
    stage, state = Baffle(lookback=4), dict[str, Tensor]()
    for number in range(1, 8):
        start = torch.full((3,), float(number), dtype=torch.float64)
        staged = stage.transform(updates_of(gaussian(5, 3), number=number, start=start), state)
        state = dict(staged.state)
    np.testing.assert_array_equal(staged.values, gaussian(5, 3))
    assert state["history"][:, 0].tolist() == [3.0, 4.0, 5.0, 6.0, 7.0]


def test_the_attacked_round_is_rejected_and_the_backdoor_with_it(tmp_path: Path) -> None:
    defended = crfl_core.run(attacked(), out=tmp_path / "defended")
    rejected = [record.round for record in defended.ledger.rounds if not record.accepted]
    assert 13 in rejected
    assert len(rejected) <= 2
    assert not defended.ledger.clients.of_round(13).weight.any()
    assert {record.depends for record in defended.ledger.rounds} == {"all"}
    undefended = crfl_core.run(attacked(aggregation=["fedavg"]), out=tmp_path / "undefended")
    assert defended.metrics.backdoor is not None
    assert undefended.metrics.backdoor is not None
    assert defended.metrics.backdoor.success_rate < undefended.metrics.backdoor.success_rate
    assert defended.metrics.accuracy > 0.9


def test_honest_rounds_are_rarely_rejected(tmp_path: Path) -> None:
    ledger = crfl_core.run(attacked(attack="none"), out=tmp_path / "run").ledger
    assert sum(not record.accepted for record in ledger.rounds) <= 1


def test_validators_who_are_assumed_to_lie_keep_silent(tmp_path: Path) -> None:
    """If all ten validators lie, none is left to suspect anything."""
    liars = [{"type": "baffle", "lookback": 8, "lying": 10}, {"type": "fedavg"}]
    ledger = crfl_core.run(attacked(aggregation=liars), out=tmp_path / "run").ledger
    assert all(record.accepted for record in ledger.rounds)


class Idle(Attack):
    """Clients that count as attackers, and train like the others."""

    def prepare(self, data: FederatedData, streams: Streams) -> State:
        return {}


def test_validators_cannot_tell_who_attacks(tmp_path: Path) -> None:
    """With every validator an attacker who does nothing, the same models are accepted as without any."""
    idle = {"type": "idle", "clients": list(range(20)), "rounds": list(range(9, 17))}
    plugins: dict[str, type[Plugin]] = {"idle": Idle}
    infested, clean = (
        crfl_core.run(attacked(attack=attack), out=tmp_path / name, plugins=plugins).ledger
        for name, attack in (("infested", idle), ("clean", "none"))
    )
    assert infested.clients.attacking.sum() == 8 * 20
    assert [record.accepted for record in infested.rounds] == [record.accepted for record in clean.rounds]
    assert [record.accuracy for record in infested.rounds] == [record.accuracy for record in clean.rounds]


class Pull(Tracker):
    """Pulls the plug when round 12 is over."""

    @hookimpl
    def crfl_round_finished(self, record: extend.RoundRecord) -> None:
        """Once: after the resume the next round is the 12th again or the 13th."""
        if record.round == 12 and not PULLED:
            PULLED.append(True)
            raise KeyboardInterrupt


PULLED: list[bool] = []


def test_a_resumed_run_remembers_the_models_that_it_compares_with(tmp_path: Path) -> None:
    storage = {"checkpoint_seconds": 0}
    whole = crfl_core.run(attacked(storage=storage), out=tmp_path / "whole")
    PULLED.clear()
    with pytest.raises(KeyboardInterrupt):
        crfl_core.run(attacked(storage=storage), out=tmp_path / "halves", trackers=[Pull()])
    halves = crfl_core.resume(tmp_path / "halves")
    assert contents(halves.path) == contents(whole.path)


def test_a_rejected_round_leaves_no_trace_in_any_state(tmp_path: Path) -> None:
    """The history holds models of accepted rounds only: after a rejection the same round is compared again."""
    lengths: list[int] = []

    class Watching(Stage):
        def transform(self, updates: ClientUpdates, state: State) -> StageResult:
            return Baffle().transform(updates, state)

        @hookimpl
        def crfl_accept_round(self, state: State) -> bool:
            lengths.append(len(state["history"]))
            return len(lengths) != 3

    config = attacked(rounds=5, attack="none", aggregation=["watching", "fedavg"])
    ledger = crfl_core.run(config, out=tmp_path / "run", plugins={"watching": Watching}).ledger
    assert [record.accepted for record in ledger.rounds] == [True, True, False, True, True]
    assert lengths == [1, 2, 3, 3, 4]
