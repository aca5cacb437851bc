"""Model replacement: what is poisoned, what is measured of it, and what the certificates are told."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from crfl_attacks.model_replacement import ModelReplacement
from crfl_attacks.triggers import FeatureTrigger, PixelTrigger
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import Tensor

import crfl_core
from crfl_core.extend import (
    Attack,
    Batches,
    ConfigError,
    DataFacts,
    Domain,
    FederatedData,
    Known,
    OptionError,
    PluginFailure,
    Realised,
    State,
    Streams,
)
from crfl_core.federation.batches import draw
from crfl_core.federation.setup import Federation
from tests.oracle import federation_of, played, tiny

T = TypeVar("T")
IMAGES = DataFacts(inputs=64, classes=10, domain=Domain(0.0, 1.0), image_shape=(8, 8))


def attack(**changes: Any) -> dict[str, Any]:
    """The attack table of the small config with some keys different."""
    table: dict[str, Any] = tiny()["attack"]
    return table | changes


def prepared(of: ModelReplacement, facts: DataFacts = IMAGES) -> State:
    """What the attack computes before training, in float64."""
    x, y = torch.zeros(1, facts.inputs, dtype=torch.float64), torch.zeros(1, dtype=torch.int64)
    names = tuple(map(str, range(facts.classes)))
    return of.prepare(FederatedData(x, y, x, y, [np.arange(1)], facts, names), Streams(0))


def some_batches(sizes: list[list[int]], batch: int = 6) -> Batches:
    """Batches of random images, none of which has the target label 0."""
    generator = torch.Generator().manual_seed(0)
    clients, steps = len(sizes), len(sizes[0])
    return Batches(
        x=torch.rand(clients, steps, batch, 64, generator=generator, dtype=torch.float64),
        y=torch.randint(1, 10, (clients, steps, batch), generator=generator),
        sizes=torch.tensor(sizes),
        clients=np.arange(clients),
        round=1,
    )


@settings(deadline=None, max_examples=30)
@given(per_batch=st.integers(1, 6), norm=st.floats(0.1, 5.0))
def test_the_first_samples_of_every_batch_get_trigger_and_target(per_batch: int, norm: float) -> None:
    own = ModelReplacement(poisoned_per_batch=per_batch, trigger=PixelTrigger(norm=norm))
    clean = some_batches([[6, 6], [6, 2]])
    before = clean.x.clone(), clean.y.clone()
    dirty = own.poison(clean, prepared(own))
    pattern = own.trigger.pattern(IMAGES)
    poisoned, rest = slice(0, per_batch), slice(per_batch, None)
    torch.testing.assert_close(dirty.x[:, :, poisoned], (clean.x[:, :, poisoned] + pattern).clamp(0, 1))
    assert (dirty.y[:, :, poisoned] == 0).all()
    assert torch.equal(dirty.x[:, :, rest], clean.x[:, :, rest])
    assert torch.equal(dirty.y[:, :, rest], clean.y[:, :, rest])
    assert torch.equal(clean.x, before[0])  # what it was handed is left as it was
    assert torch.equal(clean.y, before[1])


@settings(deadline=None, max_examples=30)
@given(norm=st.floats(0.01, 20.0), size=st.integers(1, 8), low=st.floats(-1, 0), high=st.floats(0.5, 2))
def test_a_triggered_input_stays_in_the_domain_and_moves_by_no_more_than_the_triggers_norm(
    norm: float, size: int, low: float, high: float
) -> None:
    facts = DataFacts(64, 10, Domain(low, high), (8, 8))
    own = ModelReplacement(trigger=PixelTrigger(norm=norm, size=size))
    x = torch.rand(5, 64, dtype=torch.float64) * (high - low) + low
    triggered = own.backdoored(x, prepared(own, facts))
    assert float(triggered.min()) >= low
    assert float(triggered.max()) <= high
    assert float((triggered - x).norm(dim=1).max()) <= norm * (1 + 1e-9)


@pytest.mark.parametrize(
    ("corner", "pixels"),
    [
        ("top-left", [0, 1, 8, 9]),
        ("top-right", [6, 7, 14, 15]),
        ("bottom-left", [48, 49, 56, 57]),
        ("bottom-right", [54, 55, 62, 63]),
    ],
)
def test_a_pixel_trigger_is_a_bright_square_in_its_corner(corner: str, pixels: list[int]) -> None:
    pattern = PixelTrigger.model_validate({"norm": 3.0, "size": 2, "corner": corner}).pattern(IMAGES)
    assert torch.nonzero(pattern).flatten().tolist() == pixels
    torch.testing.assert_close(pattern[pixels], torch.full((4,), 1.5).double())


@pytest.mark.parametrize(("position", "pixels"), [((0, 0), [0, 1, 8, 9]), ((2, 5), [21, 22, 29, 30])])
def test_a_pixel_trigger_can_sit_anywhere(position: tuple[int, int], pixels: list[int]) -> None:
    pattern = PixelTrigger(position=position, corner="bottom-right").pattern(IMAGES)
    assert torch.nonzero(pattern).flatten().tolist() == pixels


def test_colour_images_get_the_square_in_every_channel() -> None:
    facts = DataFacts(inputs=48, classes=2, domain=Domain(0.0, 1.0), image_shape=(3, 4, 4))
    pattern = PixelTrigger(norm=1.0, size=1).pattern(facts)
    assert torch.nonzero(pattern).flatten().tolist() == [0, 16, 32]
    assert float(pattern.norm()) == pytest.approx(1.0)


def test_a_feature_trigger_raises_the_named_features() -> None:
    pattern = FeatureTrigger(norm=2.0, features=(3, 7)).pattern(DataFacts(10, 2, Domain()))
    assert torch.nonzero(pattern).flatten().tolist() == [3, 7]
    torch.testing.assert_close(pattern[[3, 7]], torch.full((2,), math.sqrt(2.0)).double())


@pytest.mark.parametrize(
    ("trigger", "facts", "message"),
    [
        (PixelTrigger(), DataFacts(10, 2, Domain()), "trigger.type: 'pixels' needs images"),
        (PixelTrigger(size=9), IMAGES, "trigger.size: found 9, but images are 8 x 8"),
        (
            PixelTrigger(position=(3, 7)),
            IMAGES,
            "trigger.position: 2 pixels from row 3 and column 7 do not fit into images of 8 x 8",
        ),
        (FeatureTrigger(features=(64,)), IMAGES, "trigger.features: there is no feature 64: features are 0..63"),
    ],
)
def test_a_trigger_that_does_not_fit_the_data_says_why(
    trigger: PixelTrigger | FeatureTrigger, facts: DataFacts, message: str
) -> None:
    with pytest.raises(OptionError, match=re.escape(message)):
        trigger.pattern(facts)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"poisoned_per_batch": 17}, "attack.poisoned_per_batch"),
        ({"target": 10}, "attack.target"),
        ({"clients": [8]}, "attack.clients"),
        ({"clients": 9}, "attack.clients"),
        ({"rounds": [5]}, "attack.rounds"),
        ({"trigger": {"type": "pixels", "size": 9}}, "attack.trigger.size"),
    ],
)
def test_an_attack_that_does_not_fit_the_run_is_refused_before_training(changes: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        federation_of(tiny(attack=attack(**changes)))
    assert caught.value.key == key


def test_attackers_given_by_number_are_drawn_from_the_attack_stream() -> None:
    plain, same, other = (
        federation_of(tiny(attack=attack(clients=3), seeds=seeds)).facts.attackers
        for seeds in ({}, {"noise": 7}, {"attack": 7})
    )
    assert plain == same != other
    assert len(set(plain)) == 3


def measured(federation: Federation, number: int = 2) -> Any:
    """The attackers' rows of the ledger in an attacked round."""
    columns = played(federation)[number - 1].clients
    return columns.take(columns.attacking)


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
    clients = federation.participation.round(2)
    plan = draw(federation.data.partition, clients, clients.steps, 2, federation.streams)
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


def realised(**changes: Any) -> Realised:
    """Two attacked rounds with one attacker each."""
    columns: dict[str, Any] = {
        "round": np.array([2, 5]),
        "client": np.array([4, 1]),
        "poison_ratio": np.array([0.1, 0.3]),
        "delta": np.array([0.5, 0.25]),
        "flips": np.array([3, 0]),
        "scale": np.array([2.0, 9.0]),
    }
    return Realised(**(columns | changes))


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


def test_the_backdoored_test_set_holds_triggered_samples_of_the_other_classes_with_their_true_labels() -> None:
    federation = federation_of(tiny(attack=attack(target=3)))
    clean, backdoored = federation.test_sets["clean"], federation.test_sets["backdoored"]
    others = clean.labels != 3
    assert 0 < int(others.sum()) < len(clean.labels)
    assert torch.equal(backdoored.labels, clean.labels[others])
    moved = backdoored.features - clean.features[others]
    elsewhere = torch.ones(64, dtype=torch.bool)
    elsewhere[[0, 1, 8, 9]] = False
    assert float(moved[:, ~elsewhere].amin()) >= 0
    assert not moved[:, elsewhere].any()
    assert float(moved.norm(dim=1).max()) <= 1.0 + 1e-6


def test_the_backdoor_works_and_the_report_says_how_well(tmp_path: Path) -> None:
    """A scaled attacker in the final round; the success rate is recomputed from model and test set."""
    config = tiny(
        attack=attack(rounds=[4], scale=4.0, poisoned_per_batch=6, trigger={"type": "pixels", "norm": 2.0}),
        partition={"type": "iid", "clients": 8},
        training={"learning_rate": 0.3, "steps": 20, "batch_size": 16},
        server={"clip_norm": 50.0, "noise_std": 0.01},
    )
    result = crfl_core.run(config, out=tmp_path / "run")
    federation = federation_of(config)
    logits = federation.model.logits(result.parameters[None], federation.test_sets["backdoored"].features)[0]
    assert result.metrics.backdoor is not None
    assert result.metrics.backdoor.success_rate == pytest.approx(float((logits.argmax(1) == 0).double().mean()))
    assert result.metrics.backdoor.success_rate > result.metrics.backdoor.clean_rate + 0.2
    assert result.metrics.backdoor.samples == federation.facts.test_sets["backdoored"].samples


class Mislabelling(Attack):
    """Gives the first sample of every batch another label. Has neither trigger nor target."""

    def prepare(self, data: FederatedData, streams: Streams) -> State:
        return {}

    def poison(self, batches: Batches, state: State) -> Batches:
        labels = batches.y.clone()
        labels[:, :, 0] = (labels[:, :, 0] + 1) % 10
        return replace(batches, y=labels)


def test_an_attack_without_a_trigger_has_no_backdoored_test_set(tmp_path: Path) -> None:
    table = {"type": "mislabelling", "clients": [0], "rounds": [2]}
    result = crfl_core.run(tiny(attack=table), out=tmp_path / "run", plugins={"mislabelling": Mislabelling})
    assert set(result.ledger.facts.test_sets) == {"clean"}
    assert (result.metrics.backdoor, result.metrics.backdoored_accuracy) == (None, None)
    assert result.threat.poison == "labels"
    assert result.threat.scale == 1.0
    attacked = result.ledger.clients.of_round(2)
    assert attacked.label_flips.tolist() == attacked.poisoned_samples.tolist() == [5] + [0] * 7


class Cropping(ModelReplacement):
    """Returns fewer samples than it was given."""

    def poison(self, batches: Batches, state: State) -> Batches:
        return replace(batches, x=batches.x[:, :, 1:], y=batches.y[:, :, 1:])


def test_poison_that_changes_the_shape_of_batches_is_the_attacks_fault() -> None:
    with pytest.raises(PluginFailure, match=re.escape("'cropping' of (this process): poison() must keep the shapes")):
        played(federation_of(tiny(attack=attack(type="cropping")), {"cropping": Cropping}))


class Dividing(ModelReplacement):
    """Divides by a pixel that is zero in most images."""

    def poison(self, batches: Batches, state: State) -> Batches:
        return replace(batches, x=batches.x / batches.x[..., :1])


def test_poison_that_is_not_finite_is_the_attacks_fault() -> None:
    with pytest.raises(PluginFailure, match=re.escape("'dividing' of (this process): poison() made inputs that are")):
        played(federation_of(tiny(attack=attack(type="dividing")), {"dividing": Dividing}))


class Constrained(ModelReplacement):
    """Follows half the gradient and stays within a ball around the broadcast model, as stealthy attackers do."""

    ball: float = 0.05

    def local_gradient(self, gradient: Tensor, weights: Tensor, start: Tensor, state: State) -> Tensor:
        return 0.5 * gradient

    def after_step(self, weights: Tensor, start: Tensor, state: State) -> Tensor:
        way = weights - start
        factor: Tensor = (self.ball / way.norm(dim=-1, keepdim=True)).clamp(max=1.0)
        return start + way * factor


def test_attackers_can_bend_their_gradient_and_project_their_weights() -> None:
    plugins = {"constrained": Constrained}
    for ball in (0.05, 0.1):
        federation = federation_of(tiny(attack=attack(type="constrained", ball=ball, scale=1.0)), plugins)
        assert measured(federation).submitted_norm == pytest.approx([ball], rel=1e-5)
    free = federation_of(tiny(attack=attack(type="constrained", ball=1e6, scale=1.0)), plugins)
    halved = federation_of(tiny(attack=attack(learning_rate=0.1, scale=1.0)))
    assert measured(free).submitted_norm == pytest.approx(measured(halved).submitted_norm, rel=1e-5)


class Retreating(ModelReplacement):
    """Takes back half of its way after every step: doing so once more makes a difference."""

    def after_step(self, weights: Tensor, start: Tensor, state: State) -> Tensor:
        return (weights + start) / 2


def test_attackers_who_are_done_do_nothing_while_others_still_train() -> None:
    """Clients of a chunk make steps together; whoever needs fewer waits."""
    norms = []
    for chunk in (1, 8):
        engine = {"type": "local", "threads": 1, "chunk_clients": chunk}
        config = tiny(dtype="float64", attack=attack(type="retreating", steps=2), engine=engine)
        norms.append(measured(federation_of(config, {"retreating": Retreating})).submitted_norm)
    assert norms[0] == pytest.approx(norms[1], rel=1e-10)


class Raising(ModelReplacement):
    """Fails in a chosen place."""

    where: str

    def poison(self, batches: Batches, state: State) -> Batches:
        return self._maybe("poison", batches)

    def local_gradient(self, gradient: Tensor, weights: Tensor, start: Tensor, state: State) -> Tensor:
        return self._maybe("local_gradient", gradient)

    def after_step(self, weights: Tensor, start: Tensor, state: State) -> Tensor:
        return self._maybe("after_step", weights)

    def craft(self, known: Known, state: State) -> Tensor:
        return self._maybe("craft", known.own)

    def _maybe(self, place: str, answer: T) -> T:
        if place == self.where:
            raise ZeroDivisionError(place)
        return answer


@pytest.mark.parametrize("where", ["poison", "local_gradient", "after_step", "craft"])
def test_an_attack_that_raises_is_named_with_what_it_raised(where: str) -> None:
    federation = federation_of(tiny(attack=attack(type="raising", where=where)), {"raising": Raising})
    with pytest.raises(PluginFailure, match=f"attack: 'raising' of .this process. failed: ZeroDivisionError: {where}"):
        played(federation)


@pytest.mark.parametrize("options", [{"poisoned_per_batch": 0}, {"scale": 0.5}, {"target": -1}, {"steps": 0}])
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ModelReplacement.model_validate(options)
