"""What the ledger measures of an attack, and the threat that certificates are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from crfl_attacks.model_replacement import ModelReplacement

import crfl_core
from crfl_core.extend import RealisedAttack
from crfl_core.training.local_training import draw_batches
from tests.attacks.support import attack, measured
from tests.oracle import federation_of, played, tiny


def test_the_ledger_measures_the_poison_of_short_batches_too() -> None:
    """44 samples in batches of 16: two full ones, one of 12, then the next epoch begins."""
    rows = measured(federation_of(tiny()))
    assert (rows.client.tolist(), rows.last_batch.tolist(), rows.steps.tolist()) == ([0], [12], [5])
    assert rows.poisoned_samples.tolist() == [3 * 5]
    assert rows.poisoned_most.tolist() == [3]
    assert rows.poisoned_share == pytest.approx([4 * 3 / 16 + 3 / 12])


def test_a_last_batch_shorter_than_the_poison_is_poisoned_whole() -> None:
    """Client 4 has 33 samples: the last batch of an epoch has one. What fills it up to 16 does not count."""
    federation = federation_of(tiny(attack=attack(clients=[4], target=7)))
    rows = measured(federation)
    assert rows.last_batch.tolist() == [1]
    assert rows.poisoned_samples.tolist() == [4 * 3 + 1]
    assert rows.poisoned_share == pytest.approx([4 * 3 / 16 + 1])
    clients = federation.participation.participants(2)
    plan = draw_batches(federation.data.partition, clients, clients.steps, 2, federation.streams)
    poisoned = np.concatenate([plan.rows[4, step, : min(3, plan.sizes[4, step])] for step in range(5)])
    assert rows.label_flips.tolist() == [int((federation.data.y.numpy()[poisoned] != 7).sum())]


def test_the_realised_delta_is_measured_behind_the_clamp() -> None:
    """A trigger of norm 8 on four pixels would add 4 to each; the domain ends at 1."""
    federation = federation_of(tiny(attack=attack(trigger={"type": "pixels", "norm": 8.0})))
    (delta,) = measured(federation).delta
    assert 0 < delta <= 2.0
    small = federation_of(tiny(attack=attack(trigger={"type": "pixels", "norm": 0.1})))
    assert measured(small).delta == pytest.approx([0.1], rel=1e-5)


def test_samples_that_have_the_target_label_already_are_no_flips() -> None:
    """Client 5 holds 13 zeros among its 32 samples."""
    federation = federation_of(tiny(attack=attack(clients=[5], target=0)))
    assert int((federation.data.y[torch.from_numpy(federation.data.partition[5])] == 0).sum()) == 13
    rows = measured(federation)
    assert 0 < rows.label_flips[0] < rows.poisoned_samples[0] == 15


def test_honest_clients_and_rounds_have_no_poison() -> None:
    for outcome in played(federation_of(tiny())):
        honest = outcome.clients.take(~outcome.clients.attacking)
        assert outcome.clients.attacking.any() == (outcome.record.round == 2)
        for column in ("poisoned_share", "poisoned_samples", "poisoned_most", "delta", "label_flips"):
            assert not getattr(honest, column).any()
        assert (honest.scale == 1).all()


def realised(**changes: Any) -> RealisedAttack:
    """Two attacked rounds with one attacker each."""
    columns: dict[str, Any] = {
        "round": np.array([2, 5]),
        "client": np.array([4, 1]),
        "poison_ratio": np.array([0.1, 0.3]),
        "delta": np.array([0.5, 0.25]),
        "flips": np.array([3, 0]),
        "scale": np.array([2.0, 9.0]),
    }
    return RealisedAttack(**(columns | changes))


def test_the_attacks_threat_covers_the_worst_that_was_measured() -> None:
    threat = ModelReplacement().threat(realised())
    assert (threat.clients, threat.rounds) == ((1, 4), (2, 5))
    assert (threat.poison_ratio, threat.delta) == (0.3, 0.5)
    assert 9.0 <= threat.scale == pytest.approx(9.0, rel=1e-4)


def test_a_declared_scale_is_not_lowered_by_rounding() -> None:
    threat = ModelReplacement(scale=9.0).threat(realised(scale=np.array([2.0, 8.9999998])))
    assert threat.scale == 9.0


@pytest.mark.parametrize(
    ("flips", "delta", "poison"),
    [([0, 0], [0.5, 0.0], "features"), ([1, 0], [0.0, 0.0], "labels"), ([1, 0], [0.0, 0.1], "features+labels")],
)
def test_the_kind_of_poison_follows_from_what_was_changed(flips: list[int], delta: list[float], poison: str) -> None:
    threat = ModelReplacement().threat(realised(flips=np.array(flips), delta=np.array(delta)))
    assert threat.poison == poison


def test_a_threat_smaller_than_the_attack_makes_every_number_a_what_if(tmp_path: Path) -> None:
    config = tiny(threat={"scale": 2.0, "poison_ratio": 0.01, "poison": "features"})
    result = crfl_core.run(config, out=tmp_path / "small")
    for curve in result.metrics.curves:
        what_ifs = [text for text in curve.conditional if text.startswith("what-if, does not cover this run: ")]
        assert [text.removeprefix("what-if, does not cover this run: ") for text in what_ifs] == [
            "poison_ratio 0.2 is above the assumed 0.01",
            "scale 3 is above the assumed 2",
            "poison 'features+labels' is not covered by 'features'",
        ]


def test_a_threat_that_covers_the_attack_is_no_what_if(tmp_path: Path) -> None:
    result = crfl_core.run(tiny(threat={"scale": 50.0, "clean_world": "scaled"}), out=tmp_path / "large")
    assert not any("what-if" in text for curve in result.metrics.curves for text in curve.conditional)
    assert result.threat.scale == 50.0
    assert result.threat.poison_ratio == pytest.approx(0.2)  # unset: as measured
