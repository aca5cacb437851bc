"""The ledger: everything that certification needs is recorded, for every round and participant."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from crfl_aggregators.trimmed_mean import Median
from pydantic import PrivateAttr

import crfl_core
from crfl_core import RunResult
from crfl_core.errors import StoreError
from crfl_core.extend import Aggregator, Ledger, RoundRecord, TrainingTask, hookimpl
from crfl_core.records.ledger import LEDGER_FORMAT, ClientColumns, RunFacts
from crfl_core.training.federation import Federation
from crfl_core.training.local_training import LocalTraining
from tests.oracle import Momentum, Veto, federation_of, played, sealed, tiny

CONFIG = tiny(
    model={"type": "softmax", "features": {"type": "unit-ball", "radius": 4.0}},
    training={
        "learning_rate": {"per_client": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]},
        "steps": {"per_client": [1, 2, 3, 4, 5, 6, 7, 8]},
        "batch_size": 16,
        "weight_decay": 0.01,
    },
    server={"clip_norm": [0.5, 1.0, 1.5, 2.0], "noise_std": [0.1, 0.2, 0.3, 0.4]},
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """One run for the whole file; tests do not change it."""
    return crfl_core.run(CONFIG, out=tmp_path_factory.mktemp("ledger") / "run")


@pytest.fixture(scope="module")
def federation() -> Federation:
    return federation_of(CONFIG)


def test_the_facts_say_what_the_data_and_the_model_are(run: RunResult, federation: Federation) -> None:
    facts = run.ledger.facts
    assert (facts.clients, facts.rounds, facts.classes, facts.inputs, facts.features) == (8, 4, 10, 64, 64)
    assert (facts.parameters, facts.model, facts.dtype) == (650, "softmax", "float32")
    assert (facts.model_facts.linear, facts.model_facts.convex, facts.model_facts.bias) == (True, True, True)
    assert facts.model_facts.loss == "cross-entropy"
    assert facts.samples == tuple(map(len, federation.data.partition))
    assert sum(facts.samples) == 300
    assert (facts.domain, facts.input_norm_bound, facts.feature_norm_bound) == ((0.0, 1.0), 8.0, 1.0)
    assert (facts.scaling, facts.scaling_fitted, facts.feature_lipschitz) == ("unit-range", False, 0.25)
    assert facts.test_noise_std == 0.4
    assert (facts.attack, facts.attackers, facts.attack_rounds) == ("model-replacement", (0,), (2,))


def test_norms_are_the_measured_maxima_of_each_client(run: RunResult, federation: Federation) -> None:
    for client, rows in enumerate(federation.data.partition):
        inputs, features = federation.data.x[torch.from_numpy(rows)], federation.features[torch.from_numpy(rows)]
        assert run.ledger.facts.input_norms[client] == pytest.approx(float(inputs.double().norm(dim=1).max()))
        assert run.ledger.facts.feature_norms[client] == pytest.approx(float(features.double().norm(dim=1).max()))


def test_every_test_set_has_its_size_and_a_digest_of_its_content(run: RunResult) -> None:
    sets = run.ledger.facts.test_sets
    assert {name: facts.samples for name, facts in sets.items()} == {"clean": 60, "backdoored": 54}
    assert len({facts.digest for facts in sets.values()}) == 2
    other = federation_of(tiny(dataset={"type": "digits", "train_samples": 300, "test_samples": 59}))
    assert other.facts.test_sets["clean"].digest != sets["clean"].digest


def test_every_round_records_what_the_server_did(run: RunResult, federation: Federation) -> None:
    """Norms of the broadcast model are there for every round, because any may become the attacked one."""
    start = torch.zeros(650)
    for outcome, record in zip(played(federation), run.ledger.rounds, strict=True):
        assert record == outcome.record
        assert record.start_norm == pytest.approx(float(start.norm()))
        weight = start[:640].reshape(10, 64).double().numpy()
        spectrum = np.linalg.svd(weight - weight.mean(axis=0), compute_uv=False)
        assert record.start_operator_norm == pytest.approx(float(spectrum[0]), rel=1e-6)
        assert record.norm_before_clip > 0
        assert (record.accepted, record.depends, record.weights_from) == (True, "fixed", "chain")
        assert (record.participants, record.quarantined) == (8, 0)
        assert record.accuracy is not None
        start = outcome.parameters
    assert [record.clip_norm for record in run.ledger.rounds] == [0.5, 1.0, 1.5, 2.0]
    assert [record.noise_std for record in run.ledger.rounds] == [0.1, 0.2, 0.3, 0.0]


def test_every_participant_of_every_round_has_a_row(run: RunResult) -> None:
    columns = run.ledger.clients
    assert columns.round.tolist() == [number for number in (1, 2, 3, 4) for _ in range(8)]
    assert columns.client.tolist() == list(range(8)) * 4
    samples = np.asarray(run.ledger.facts.samples)
    for number in (1, 2, 3, 4):
        rows = columns.of_round(number)
        np.testing.assert_allclose(rows.weight, samples / samples.sum(), rtol=1e-6)
        np.testing.assert_array_equal(rows.weight_bound, rows.weight)
        np.testing.assert_allclose(rows.learning_rate, np.arange(1, 9) / 10)
        assert rows.steps.tolist() == list(range(1, 9))
        assert rows.batch_size.tolist() == [16] * 8
        np.testing.assert_array_equal(rows.last_batch, (samples - 1) % 16 + 1)
        assert (rows.weight_decay == 0.01).all()
        assert np.isinf(rows.cap).all()
        assert (rows.submitted_norm > 0).all()
        assert not rows.quarantined.any()
        assert rows.attacking.tolist() == [number == 2] + [False] * 7


def test_rows_say_what_the_protocol_allows_at_most(run: RunResult) -> None:
    """retention = (1 - eta lambda)^tau, and sqrt(2) ||(x, 1)|| (1 - retention) / lambda with ||x|| <= 1."""
    rows = run.ledger.clients.of_round(1)
    retention = (1 - rows.learning_rate * 0.01) ** rows.steps
    np.testing.assert_allclose(rows.retention, retention, rtol=1e-12)
    np.testing.assert_allclose(rows.update_bound, 2.0 * (1 - retention) / 0.01, rtol=1e-12)
    np.testing.assert_array_equal(rows.honest_rate, rows.learning_rate)
    np.testing.assert_array_equal(rows.honest_steps, rows.steps)


def test_no_honest_update_is_longer_than_the_ledger_says(federation: Federation) -> None:
    """`u = -(1 - retention) w + r` with `||r|| <= update_bound`, for every honest client of every round."""
    job = LocalTraining(federation)
    start = torch.zeros(650)
    for outcome in played(federation):
        number = outcome.record.round
        clients = federation.participation.participants(number)
        task = TrainingTask(number, start[None, None], clients, attacked=False)
        updates = job.train(task, slice(0, 8)).updates[0].double()
        shrunk = torch.from_numpy(1 - clients.retention)[:, None] * start.double()
        residuals = (updates + shrunk).norm(dim=1).numpy()
        assert (residuals <= outcome.clients.update_bound * (1 + 1e-6)).all()
        assert (residuals > 0).all()
        start = outcome.parameters


def test_attackers_own_settings_stand_beside_the_honest_ones() -> None:
    federation = federation_of(tiny(attack=tiny()["attack"] | {"learning_rate": 0.9, "steps": 11}))
    rows = played(federation)[1].clients
    assert (rows.learning_rate[:2].tolist(), rows.steps[:2].tolist()) == ([0.9, 0.2], [11, 5])
    assert (rows.honest_rate[:2].tolist(), rows.honest_steps[:2].tolist()) == ([0.2, 0.2], [5, 5])


def test_attackers_rows_hold_what_was_measured(run: RunResult) -> None:
    rows = run.ledger.clients.take(run.ledger.clients.attacking)
    assert (rows.round.tolist(), rows.client.tolist()) == ([2], [0])
    assert rows.scale == pytest.approx([3.0], rel=1e-6)
    assert (rows.poisoned_samples.tolist(), rows.poisoned_most.tolist(), rows.label_flips.tolist()) == ([3], [3], [3])
    assert rows.poisoned_share == pytest.approx([3 / 16])
    assert rows.delta == pytest.approx([1.0], rel=1e-5)
    assert 0.5 < rows.poisoned_norm[0] <= 1 + 1e-6  # behind the map into the unit ball


def test_a_rule_that_remembers_and_a_plugin_that_may_reject_are_marked(run: RunResult) -> None:
    assert not run.ledger.facts.rejects
    assert not any(record.carries_state for record in run.ledger.rounds)
    remembering = federation_of(tiny(aggregation=[{"type": "momentum"}]), {"momentum": Momentum})
    assert all(outcome.record.carries_state for outcome in played(remembering))
    assert federation_of(tiny(trackers=[{"type": "veto"}]), {"veto": Veto}).facts.rejects


class Recalling(Median):
    """Could keep what it sees where no checkpoint and no audit would find it."""

    _seen: list[float] = PrivateAttr(default_factory=list)


class Overhearing(Median):
    """Could hear of a round what its noise should hide."""

    @hookimpl
    def crfl_round_finished(self, record: RoundRecord) -> None:
        assert record.round


@pytest.mark.parametrize("rule", [Recalling, Overhearing])
def test_a_rule_that_could_remember_by_itself_is_marked_and_refuses_what_rests_on_noise(
    rule: type[Aggregator], tmp_path: Path
) -> None:
    config = tiny(aggregation=["mine"], certificates=["postprocess"])
    found = crfl_core.run(config, out=tmp_path / "run", plugins={"mine": rule})
    assert all(record.carries_state for record in found.ledger.rounds)
    assert "a plugin remembers the round" in found.metrics.refused["postprocess"]


def test_partial_participation_leaves_rows_of_participants_only() -> None:
    training = {"learning_rate": 0.2, "steps": 5, "batch_size": 16, "participation": 0.5}
    federation = federation_of(tiny(attack="none", training=training))
    for outcome in played(federation):
        samples = np.asarray(federation.facts.samples)[outcome.clients.client]
        assert len(outcome.clients) == outcome.record.participants == 4
        np.testing.assert_allclose(outcome.clients.weight, samples / samples.sum(), rtol=1e-6)


def test_rounds_are_lines_of_json_and_columns_plain_arrays(run: RunResult) -> None:
    lines = (run.path / "rounds.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [1, 2, 3, 4]
    with np.load(run.path / "clients.npz", allow_pickle=False) as arrays:
        assert set(arrays) == set(ClientColumns.names())
        assert {arrays[name].dtype.kind for name in arrays} <= set("ifb")


def test_infinite_facts_survive_the_file(tmp_path: Path) -> None:
    """Standardised data have no domain; their bounds are infinite, which plain JSON does not know."""
    dataset = {"type": "digits", "train_samples": 300, "test_samples": 60, "scaling": "standardise"}
    trigger = {"type": "features", "features": [3]}
    config = tiny(dataset=dataset, attack=tiny()["attack"] | {"trigger": trigger})
    facts = crfl_core.run(config, out=tmp_path / "run").ledger.facts
    assert facts.domain == (-np.inf, np.inf)
    assert facts.input_norm_bound == np.inf
    assert facts.scaling_fitted
    json.loads((tmp_path / "run" / "ledger.json").read_text(), parse_constant=lambda text: pytest.fail(text))


def of(run: RunResult, facts: dict[str, Any] | None = None, rounds: tuple[RoundRecord, ...] | None = None) -> Ledger:
    """The ledger of the run with some parts exchanged."""
    changed = RunFacts.model_validate(run.ledger.facts.model_dump() | (facts or {}))
    return replace(run.ledger, facts=changed, rounds=run.ledger.rounds if rounds is None else rounds)


def test_another_format_is_refused_with_both_versions(run: RunResult) -> None:
    with pytest.raises(StoreError, match=f"has format 99, this version of crfl reads format {LEDGER_FORMAT}"):
        of(run, facts={"format": 99})


@pytest.mark.parametrize("keep", [(), (0, 1, 2), (0, 2, 3), (1, 0, 2, 3), (0, 1, 2, 3, 3)])
def test_missing_or_misplaced_rounds_are_refused(run: RunResult, keep: tuple[int, ...]) -> None:
    with pytest.raises(StoreError, match="the ledger must hold rounds 1 to 4"):
        of(run, rounds=tuple(run.ledger.rounds[position] for position in keep))


def test_a_shortened_file_is_noticed_when_a_run_is_read(run: RunResult, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(run.path, tmp_path / "copy"))
    lines = (copy / "rounds.jsonl").read_text().splitlines(keepends=True)
    (copy / "rounds.jsonl").write_text("".join(lines[:-1]))
    with pytest.raises(StoreError, match="found 3"):
        _ = crfl_core.load(sealed(copy)).ledger


def test_rows_can_be_chosen_and_put_together_again(run: RunResult) -> None:
    columns = run.ledger.clients
    again = ClientColumns.concatenate([columns.of_round(number) for number in (1, 2, 3, 4)])
    for name in ClientColumns.names():
        np.testing.assert_array_equal(getattr(again, name), getattr(columns, name))
    assert len(columns.of_round(5)) == 0
