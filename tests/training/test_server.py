"""The server's side of a round: bad updates, crafted updates, clip and noise."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from crfl_attacks.model_replacement import ModelReplacement
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import PrivateAttr
from torch import Tensor

import crfl_core
from crfl_core import extend
from crfl_core.extend import (
    AttackerView,
    ClientUpdates,
    Engine,
    Job,
    LocalUpdates,
    Plugin,
    PluginFailure,
    Round,
    RuleResult,
    RunError,
    State,
    Streams,
    TrainingTask,
    hookimpl,
)
from crfl_core.training import rounds
from tests.oracle import Median, Played, federation_of, played, tiny


class Corrupting(Engine):
    """Trains client by client and spoils what some of them submit."""

    broken: tuple[int, ...]
    how: Literal["nan", "inf", "shape"] = "nan"

    _job: Job | None = PrivateAttr(default=None)

    def open(self, job: Job) -> None:
        self._job = job

    def train(self, task: TrainingTask) -> Iterator[LocalUpdates]:
        assert self._job is not None
        for position, client in enumerate(task.clients.ids):
            trained = self._job.train(task, slice(position, position + 1))
            yield replace(trained, updates=self._spoilt(trained.updates)) if client in self.broken else trained

    def _spoilt(self, updates: Tensor) -> Tensor:
        if self.how == "shape":
            return updates[..., :-1]
        spoilt = updates.clone()
        spoilt[..., 3] = math.nan if self.how == "nan" else math.inf
        return spoilt


PLUGINS: dict[str, type[Plugin]] = {"corrupting": Corrupting, "median": Median}


def corrupted(how: str = "nan", **changes: Any) -> list[Played]:
    """All rounds of an honest federation in which the updates of clients 2 and 5 arrive broken."""
    engine = {"type": "corrupting", "broken": [2, 5], "how": how}
    return played(federation_of(tiny(dtype="float64", engine=engine) | changes, PLUGINS))


@pytest.mark.parametrize("how", ["nan", "inf", "shape"])
def test_a_bad_update_is_recorded_and_counts_as_zero_with_its_weight_kept(how: str) -> None:
    """Dropping it would move every honest client's weight, which an attacker could do at will."""
    outcome = corrupted(how, attack="none")[0]
    samples = federation_of(tiny(attack="none")).facts.samples
    np.testing.assert_allclose(outcome.clients.weight, np.asarray(samples) / sum(samples), rtol=1e-12)
    assert outcome.record.quarantined == 2
    assert np.flatnonzero(outcome.clients.quarantined).tolist() == [2, 5]
    assert not np.isfinite(outcome.clients.submitted_norm[[2, 5]]).any()
    assert np.isfinite(np.delete(outcome.clients.submitted_norm, [2, 5])).all()
    assert outcome.record.depends == "fixed"


def test_a_zeroed_update_moves_the_model_by_nothing() -> None:
    whole = played(federation_of(tiny(dtype="float64", attack="none", server={"clip_norm": 99.0, "noise_std": 0.0})))[0]
    some = corrupted(attack="none", server={"clip_norm": 99.0, "noise_std": 0.0})[0]
    federation = federation_of(tiny(dtype="float64", attack="none"))
    job = extend.open_job(federation.specification)
    zero = torch.zeros(federation.facts.parameters, dtype=torch.float64)
    task = TrainingTask(1, zero[None, None], federation.participation.participants(1), attacked=True)
    updates = job.train(task, slice(0, 8)).updates[0]
    missing = sum(float(whole.clients.weight[client]) * updates[client] for client in (2, 5))
    torch.testing.assert_close(some.parameters, whole.parameters - missing)


def test_dropping_renormalises_the_others_and_makes_the_weights_dependent() -> None:
    outcome = corrupted(attack="none", server={"clip_norm": 4.0, "noise_std": 0.02, "bad_update": "drop"})[0]
    samples = np.asarray(federation_of(tiny(attack="none")).facts.samples, np.float64)
    samples[[2, 5]] = 0
    np.testing.assert_allclose(outcome.clients.weight, samples / samples.sum(), rtol=1e-12)
    assert outcome.record.depends == "all"
    assert outcome.record.quarantined == 2


def test_dropping_no_updates_leaves_the_weights_fixed() -> None:
    server_settings = {"clip_norm": 4.0, "noise_std": 0.02, "bad_update": "drop"}
    outcomes = played(federation_of(tiny(attack="none", server=server_settings)))
    assert {outcome.record.depends for outcome in outcomes} == {"fixed"}


def test_a_rule_that_looks_at_all_updates_never_sees_a_bad_one() -> None:
    outcomes = corrupted(attack="none", aggregation=[{"type": "median"}])
    for outcome in outcomes:
        assert outcome.clients.weight[[2, 5]].tolist() == [0.0, 0.0]
        assert outcome.clients.weight.sum() == pytest.approx(1.0)
        assert (outcome.record.quarantined, outcome.record.depends) == (2, "all")


def test_a_round_without_a_usable_update_stops_and_can_be_resumed(tmp_path: Path) -> None:
    class Mended(Corrupting):
        """The same engine, repaired."""

        def _spoilt(self, updates: Tensor) -> Tensor:
            return updates

    config = tiny(engine={"type": "corrupting", "broken": list(range(8))}, storage={"checkpoint_seconds": 0})
    with pytest.raises(RunError, match="round 1: no usable update is left, all 8 are non-finite or of the wrong shape"):
        crfl_core.run(config, out=tmp_path / "run", plugins=PLUGINS)
    result = crfl_core.resume(tmp_path / "run", plugins=PLUGINS | {"corrupting": Mended})
    assert [record.quarantined for record in result.ledger.rounds] == [0, 0, 0, 0]


def test_a_quarantined_attacker_does_not_hide_what_the_others_did(tmp_path: Path) -> None:
    """The measured scale of a broken update is not a number; the threat must still see the factor 3 beside it."""
    attack = tiny()["attack"] | {"clients": [0, 2]}
    config = tiny(attack=attack, engine={"type": "corrupting", "broken": [2], "how": "inf"})
    result = crfl_core.run(config, out=tmp_path / "run", plugins=PLUGINS)
    attacked = result.ledger.clients.of_round(2)
    assert attacked.scale[[0, 2]] == pytest.approx([3.0, 0.0], rel=1e-6)
    assert result.threat.scale == pytest.approx(3.0, rel=1e-6)


class Forgetful(Corrupting):
    """Leaves the broken clients out."""

    def train(self, task: TrainingTask) -> Iterator[LocalUpdates]:
        for trained in super().train(task):
            if task.clients.ids[trained.part][0] not in self.broken:
                yield trained


def test_an_engine_that_forgets_a_client_is_named() -> None:
    engine = {"type": "forgetful", "broken": [6]}
    with pytest.raises(PluginFailure, match="the engine must train every participant once: client 6 in round 1"):
        played(federation_of(tiny(engine=engine), {"forgetful": Forgetful}))


@settings(deadline=None, max_examples=50)
@given(size=st.integers(1, 30), norm=st.floats(1e-3, 1e3), rho=st.floats(1e-3, 1e3), seed=st.integers(0, 99))
def test_the_clip_is_the_projection_on_a_ball(size: int, norm: float, rho: float, seed: int) -> None:
    vector = torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    vector *= norm / vector.norm()
    clipped = rounds.clip(vector[None], rho)[0]
    torch.testing.assert_close(clipped, vector * min(1.0, rho / norm), rtol=1e-12, atol=0)
    assert norm > rho * (1 - 1e-9) or torch.equal(clipped, vector)


def test_zero_is_clipped_to_zero() -> None:
    assert torch.equal(rounds.clip(torch.zeros(2, 5), 1.0), torch.zeros(2, 5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_noise_is_gaussian_with_the_given_deviation_on_every_parameter(dtype: torch.dtype) -> None:
    """200,000 draws: each moment within five of its standard errors."""
    start = torch.ones(1, 200_000, dtype=dtype)
    noise = (rounds.add_noise(start, 0.3, Streams(seed=4), number=2, replicas=range(1)) - start)[0].double() / 0.3
    error = 1 / math.sqrt(len(noise))
    assert abs(float(noise.mean())) < 5 * error
    assert abs(float(noise.var()) - 1) < 5 * error * math.sqrt(2)
    assert abs(float((noise**3).mean())) < 5 * error * math.sqrt(15)
    assert abs(float((noise**4).mean()) - 3) < 5 * error * math.sqrt(96)
    assert (noise != 0).all()


def test_noise_differs_between_rounds_and_replicas_and_scales_with_sigma() -> None:
    start, streams = torch.zeros(1, 50, dtype=torch.float64), Streams(seed=4)

    def noisy(std: float, number: int, replica: int = 0) -> Tensor:
        return rounds.add_noise(start, std, streams, number, range(replica, replica + 1))

    first = noisy(0.1, 1)
    assert torch.equal(first, noisy(0.1, 1))
    torch.testing.assert_close(noisy(0.2, 1), 2 * first)
    assert (first != noisy(0.1, 2)).all()
    assert (first != noisy(0.1, 1, replica=1)).all()
    assert (noisy(0.1, 1, replica=1) != noisy(0.1, 1, replica=2)).all()
    assert noisy(0.0, 1) is start


def test_the_noise_of_a_model_does_not_depend_on_the_models_beside_it() -> None:
    """And that of continuations is drawn from the stream of the votes, whose seed attackers need not know."""
    start, streams = torch.zeros(3, 50, dtype=torch.float64), Streams(seed=4)
    together = rounds.add_noise(start, 0.1, streams, 2, range(1, 4))
    for row, replica in enumerate(range(1, 4)):
        drawn = streams.generator("votes/continuation", round_number=2, replica=replica).standard_normal(50)
        np.testing.assert_allclose(together[row], 0.1 * drawn, rtol=1e-15)
        assert torch.equal(
            together[row : row + 1], rounds.add_noise(start[:1], 0.1, streams, 2, range(replica, replica + 1))
        )
    other = rounds.add_noise(start, 0.1, Streams(seed=4, seeds={"votes": 9}), 2, range(1, 4))
    assert (together != other).all()


@pytest.mark.parametrize(("scale", "participation"), [(7.5, 1.0), (7.5, 0.5), ("replace", 1.0), ("replace", 0.5)])
def test_attackers_scale_their_update_by_the_given_factor_or_by_one_over_their_weight(
    scale: float | str, participation: float
) -> None:
    attack = tiny()["attack"] | {"clients": [0, 1, 4, 5, 6], "scale": scale}
    training = {"learning_rate": 0.2, "steps": 5, "batch_size": 16, "participation": participation}
    outcome = played(federation_of(tiny(dtype="float64", attack=attack, training=training)))[1]
    attacking, weights = outcome.clients.attacking, outcome.clients.weight
    assert attacking.any()
    expected = 1 / weights[attacking] if scale == "replace" else np.full(attacking.sum(), 7.5)
    np.testing.assert_allclose(outcome.clients.scale[attacking], expected, rtol=1e-9)
    assert (outcome.clients.scale[~attacking] == 1).all()


def test_exact_replacement_puts_the_attackers_model_in_place_of_the_global_one() -> None:
    """With p = 1 / p_i and honest clients that stand still, the aggregate is the attacker's own update."""
    own = torch.randn(1, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    federation = federation_of(tiny())
    current = Round(1, 4, federation.participation.participants(1), federation.model.layout, federation.streams, own[0])
    weight = torch.tensor([0.05], dtype=torch.float64)
    no_updates = ClientUpdates(own[:0], current)
    known = AttackerView(current, own, weight, no_updates, federation.model, federation.test_sets["clean"].features)
    crafted = ModelReplacement(scale="replace").craft(known, {})
    torch.testing.assert_close(weight @ crafted, own[0])


class Shrinking(ModelReplacement):
    """Crafts an update that is too short."""

    def craft(self, known: AttackerView, state: State) -> Tensor:
        return known.own_updates[:, :-1]


def test_a_crafted_update_of_the_wrong_shape_is_the_attacks_fault() -> None:
    attack = tiny()["attack"] | {"type": "shrinking"}
    with pytest.raises(PluginFailure, match=r"'shrinking' of .+: craft\(\) must return \(1, 650\), found \(1, 649\)"):
        played(federation_of(tiny(attack=attack), {"shrinking": Shrinking}))


class Reporting(Median):
    """The median again, with weights of its own for the record."""

    right: bool = True

    @hookimpl
    def crfl_effective_weights(self, updates: ClientUpdates, aggregate: RuleResult) -> Tensor:
        weights = aggregate.weights
        return torch.nextafter(weights, torch.ones_like(weights)) if self.right else weights * 2


def test_replaced_weights_are_recorded_with_their_source_and_never_count_as_fixed() -> None:
    federation = federation_of(tiny(attack="none", aggregation=[{"type": "reporting"}]), {"reporting": Reporting})
    record = played(federation)[0].record
    assert record.weights_from.startswith("aggregator 'reporting' of")
    assert record.depends == "all"


def test_replaced_weights_must_give_the_same_aggregate() -> None:
    aggregation = [{"type": "reporting", "right": False}]
    federation = federation_of(tiny(attack="none", aggregation=aggregation), {"reporting": Reporting})
    with pytest.raises(PluginFailure, match="crfl_effective_weights does not reconstruct the aggregate"):
        played(federation)
