"""What holds for every attack: its schedule, the threat it states, the errors it makes before training."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from crfl_attacks.model_replacement import ModelReplacement
from hypothesis import given, settings
from hypothesis import strategies as st

import crfl_core
from crfl_core import RunConfig, load_config
from crfl_core.certification.threat_resolution import measure_attack
from crfl_core.extend import Batches, ConfigError, Plugin, PluginFailure, Registry, State
from crfl_core.records.threat import SCALE_TOLERANCE, Poison, covers
from crfl_core.training.federation import Federation
from crfl_core.training.local_training import draw_batches
from tests.attacks.support import FITTING, attack_of, attacked, ledger_of
from tests.oracle import federation_of, played, tiny

UPDATES = {
    *("constrain-and-scale", "pgd", "neurotoxin", "sign-flip", "alie", "inner-product-manipulation", "gaussian"),
    *("min-max", "min-sum", "adaptive", "certificate-seeking"),
}
REPLACEMENTS = {"edge-case", "semantic"}

PER_BATCH = {"poisoned_per_batch": st.integers(1, 16), "target": st.integers(0, 9)}
TRIGGER = {
    "trigger": st.builds(
        lambda norm, size: {"type": "pixels", "norm": norm, "size": size}, st.floats(0.01, 9), st.integers(2, 8)
    )
}
OPTIONS: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "model-replacement": PER_BATCH | TRIGGER,
    "dba": PER_BATCH | TRIGGER | {"parts": st.integers(1, 4)},
    "constrain-and-scale": PER_BATCH | TRIGGER | {"alpha": st.floats(0.1, 1.0)},
    "pgd": PER_BATCH | TRIGGER | {"radius": st.floats(0.01, 2.0)},
    "edge-case": PER_BATCH | {"tail": st.floats(0.1, 0.9)},
    "semantic": PER_BATCH
    | {"property": st.builds(lambda share: {"type": "bright", "share": share}, st.floats(0.2, 0.8))},
    "label-flip": {"source": st.integers(0, 4), "target": st.integers(5, 9)},
    "sign-flip": {},
    "alie": {"z": st.floats(0.1, 4.0)},
    "inner-product-manipulation": {"epsilon": st.floats(0.1, 4.0)},
    "gaussian": {"std": st.floats(0.01, 2.0)},
    "neurotoxin": PER_BATCH | TRIGGER | {"ratio": st.floats(0.01, 0.9)},
    "min-max": {"perturbation": st.sampled_from(["unit", "std", "sign"])},
    "min-sum": {"perturbation": st.sampled_from(["unit", "std", "sign"])},
    "adaptive": {"halvings": st.integers(1, 4), "reach": st.floats(0.1, 20.0)},
    "certificate-seeking": {"bound": st.one_of(st.just("honest"), st.floats(0.01, 5.0)), "samples": st.integers(1, 9)},
}
"""Ranges of the options of every attack."""


def test_these_are_the_included_attacks() -> None:
    assert set(FITTING) == set(OPTIONS) == set(Registry().names("attack"))


@pytest.mark.parametrize("name", FITTING)
def test_every_attack_cites_its_paper(name: str) -> None:
    plugin: type[Plugin] = Registry().load("attack", name)
    assert re.search(r"(et al\.|& \w+), 20\d\d", plugin.__doc__ or "")


@pytest.mark.parametrize("name", FITTING)
def test_any_attack_follows_any_schedule(name: str) -> None:
    """First, every, last; and a list. Outside of it the attackers are honest."""
    schedule = {"first": 2, "every": 2, "last": 5}
    ledger = ledger_of(attacked(name, FITTING[name] | {"rounds": schedule}, rounds=6))
    rows = ledger.clients
    assert sorted(set(rows.round[rows.attacking].tolist())) == [2, 4]
    assert set(rows.client[rows.attacking].tolist()) == {0, 4}
    honest = rows.take(~rows.attacking)
    assert (honest.scale == 1).all()
    assert not honest.poisoned_samples.any()


@pytest.mark.parametrize("name", FITTING)
def test_any_attack_composes_with_a_chain_of_defences_and_a_feature_map(name: str) -> None:
    chain = [{"type": "norm-bound", "bound": 0.5}, {"type": "bucketing", "size": 2}, "median"]
    model = {"type": "softmax", "features": {"type": "random-fourier", "outputs": 20}}
    outcomes = played(attacked(name, FITTING[name], aggregation=chain, model=model))
    assert all(bool(torch.isfinite(outcome.aggregate).all()) for outcome in outcomes)


PROTOCOLS = st.fixed_dictionaries(
    {
        "training": st.fixed_dictionaries(
            {
                "learning_rate": st.just(0.2),
                "epochs": st.integers(1, 2),  # clients are unequal, and so are their steps
                "batch_size": st.just(16),
                "participation": st.sampled_from([0.5, 1.0]),
                "weight_decay": st.sampled_from([0.0, 0.1]),
            }
        ),
        "engine": st.sampled_from([{"type": "local", "threads": 1, "chunk_clients": size} for size in (1, 8)]),
    }
)
"""What else may differ between runs: who trains how long, who is drawn, who shares a chunk."""

WHO_AND_WHEN = st.fixed_dictionaries(
    {
        "clients": st.sampled_from([[0, 4], [4, 0, 4, 7], 3, list(range(8))]),
        "rounds": st.sampled_from([[1, 2], [2, 2, 1], {"first": 1}]),
        "scale": st.one_of(st.just("replace"), st.floats(1.0, 50.0)),
    },
    optional={"steps": st.integers(1, 7), "learning_rate": st.floats(0.01, 1.0)},
)
"""Options that all attacks share; names may come twice."""


@settings(deadline=None, max_examples=30)
@given(data=st.data(), name=st.sampled_from(sorted(OPTIONS)), protocol=PROTOCOLS, common=WHO_AND_WHEN)
def test_the_stated_threat_covers_everything_that_was_done(
    data: st.DataObject, name: str, protocol: dict[str, Any], common: dict[str, Any]
) -> None:
    """Counted again: sample by sample, from the batches that the attackers would have had and those that they had."""
    options = {key: data.draw(values, label=key) for key, values in OPTIONS[name].items()}
    federation = attacked(name, options | common, **protocol)
    attack, ledger = attack_of(federation), ledger_of(federation)
    threat = attack.threat(measure_attack(ledger))
    assert threat.poison == ("update" if name in UPDATES else "replacement" if name in REPLACEMENTS else threat.poison)
    rows = ledger.clients.take(ledger.clients.attacking)
    assert threat.clients == tuple(sorted(set(rows.client.tolist())))
    assert set(threat.clients) <= set(federation.participation.attackers)
    assert threat.rounds == tuple(sorted(set(rows.round.tolist())))
    assert threat.scale * (1 + SCALE_TOLERANCE) >= rows.scale.max()
    for number in threat.rounds:
        clean, dirty = batches_of(federation, number)
        for attacker in range(len(clean.clients)):
            ratios = []
            for step, size in enumerate(clean.sizes[attacker].tolist()):
                if size == 0:
                    continue
                moved = (dirty.x[attacker, step, :size] - clean.x[attacker, step, :size]).double().norm(dim=-1)
                flipped = dirty.y[attacker, step, :size] != clean.y[attacker, step, :size]
                kinds: dict[Poison, bool] = {"features": bool((moved > 0).any()), "labels": bool(flipped.any())}
                for kind, changed in kinds.items():
                    assert covers(threat.poison, kind) or not changed
                assert threat.delta is not None
                assert float(moved.max()) <= threat.delta * (1 + SCALE_TOLERANCE)
                if "trigger" in options:
                    assert float(moved.max()) <= options["trigger"]["norm"] * (1 + SCALE_TOLERANCE)
                ratios.append(float(((moved > 0) | flipped).double().mean()))
            assert np.mean(ratios) <= threat.poison_ratio * (1 + SCALE_TOLERANCE)


@pytest.mark.parametrize("name", FITTING)
def test_what_an_attacker_does_does_not_depend_on_who_shares_its_chunk(name: str) -> None:
    """Clients make as many steps as they have batches, so that a chunk has more steps than most of its clients."""
    training = {"learning_rate": 0.2, "epochs": 1, "batch_size": 16}
    alone, together = (
        played(
            attacked(
                name,
                FITTING[name],
                training=training,
                dtype="float64",
                engine={"type": "local", "threads": 1, "chunk_clients": size},
            )
        )
        for size in (1, 8)
    )
    for one, other in zip(alone, together, strict=True):
        torch.testing.assert_close(one.aggregate, other.aggregate, rtol=1e-9, atol=1e-12)
        assert one.clients.delta == pytest.approx(other.clients.delta)


def batches_of(federation: Federation, number: int) -> tuple[Batches, Batches]:
    """The attackers' batches of a round, before and after they were poisoned."""
    behaviour = federation.participation.behaviour(number)
    clients = federation.participation.participants(number).take(behaviour.attacking)
    plan = draw_batches(
        federation.data.partition, clients, behaviour.steps[behaviour.attacking], number, federation.streams
    )
    rows = torch.from_numpy(plan.rows)
    x, y = federation.data.x[rows], federation.data.y[rows]
    clean = Batches(x, y, torch.from_numpy(plan.sizes), clients.ids, number)
    return clean, attack_of(federation).poison(clean, federation.prepared)


@pytest.mark.parametrize("name", FITTING)
@pytest.mark.parametrize(("changes", "key"), [({"clients": [8]}, "attack.clients"), ({"rounds": [7]}, "attack.rounds")])
def test_attackers_and_rounds_that_do_not_exist_are_refused_before_training(
    name: str, changes: dict[str, Any], key: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        attacked(name, FITTING[name] | changes)
    assert caught.value.key == key


def config_of(**attack: Any) -> RunConfig:
    """The small config with an attack, checked as far as a config can be without data."""
    return load_config(tiny(attack={"clients": [0], "rounds": [2]} | attack)).config


@pytest.mark.parametrize(
    ("options", "key", "message"),
    [
        ({"type": "dba", "poisoned_per_batch": 17}, "poisoned_per_batch", "found 17, but an attacker's batch has 16"),
        ({"type": "dba", "parts": 5}, "parts", "a trigger of 4 pixels or features cannot be cut into 5 parts"),
        (
            {"type": "pgd", "trigger": {"type": "pixels", "position": [7, 0]}},
            "trigger.position",
            "do not fit into images of 8 x 8",
        ),
        ({"type": "pgd", "target": 10}, "target", "there is no class 10: classes are 0..9"),
        ({"type": "label-flip", "target": 10}, "target", "there is no class 10: classes are 0..9"),
        ({"type": "label-flip", "source": 10, "target": 1}, "source", "there is no class 10: classes are 0..9"),
        ({"type": "label-flip", "source": 1, "target": 1}, "source", "is the target 1 itself"),
        ({"type": "semantic", "source": 0}, "source", "is the target 0 itself"),
        (
            {"type": "semantic", "property": {"type": "above", "features": [64], "threshold": 0.5}},
            "property.features",
            "there is no feature 64: features are 0..63",
        ),
        (
            {"type": "semantic", "property": {"type": "above", "features": [0], "threshold": 0.5}},
            "property",
            "no training sample has the property",
        ),
        ({"type": "edge-case", "source": 12}, "source", "there is no class 12"),
        ({"type": "edge-case", "source": 3, "tail": 0.001}, "tail", "sample has the property: choose a weaker one"),
        ({"type": "edge-case", "file": "missing.npz"}, "file", "missing.npz: there is no such file"),
    ],
)
def test_options_that_do_not_fit_the_data_are_refused_before_training(
    options: dict[str, Any], key: str, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        federation_of(tiny(attack={"clients": [0], "rounds": [2]} | options))
    assert caught.value.key == f"attack.{key}"
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"type": "constrain-and-scale", "alpha": 0.0},
        {"type": "pgd", "radius": 0.0},
        {"type": "alie", "z": 0.0},
        {"type": "inner-product-manipulation", "epsilon": -1.0},
        {"type": "gaussian", "std": 0.0},
        {"type": "neurotoxin", "ratio": 1.0},
        {"type": "min-max", "perturbation": "cosine"},
        {"type": "adaptive", "rule": {"type": "krum", "f": -1}},
        {"type": "certificate-seeking", "bound": 0.0},
        {"type": "edge-case", "tail": 1.0},
        {"type": "edge-case", "file": "a.npz", "source": 3},
        {"type": "semantic", "property": {"type": "loud"}},
        {"type": "dba", "parts": 0},
        {"type": "dba", "scale": math.inf},
        {"type": "dba", "learning_rate": math.inf},
        {"type": "dba", "trigger": {"type": "pixels", "norm": math.inf}},
        {"type": "semantic", "property": {"type": "above", "features": [0], "threshold": -math.inf}},
        {"type": "pgd", "radius": math.inf},
    ],
)
def test_options_that_make_no_sense_are_refused_by_the_config(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="attack"):
        config_of(**options)


def test_a_threat_stated_by_an_attack_without_a_trigger_is_no_what_if(tmp_path: Path) -> None:
    """The certificates of a run cover what the attackers of the same run replaced."""
    attack = {"type": "semantic", "clients": [0], "rounds": [2], "poisoned_per_batch": 3}
    model = {"type": "softmax", "features": {"type": "unit-ball", "radius": 4.0}}
    config = tiny(attack=attack, model=model, certificates=["pathwise-linear"], dtype="float64")
    result = crfl_core.run(config, out=tmp_path / "run", overrides=["storage.figures=[]"])
    assert result.threat.poison == "replacement"
    assert {curve.test_set for curve in result.metrics.curves} == {"clean", "backdoored"}
    assert not any("what-if" in text for curve in result.metrics.curves for text in curve.conditional)


def test_an_attack_that_poisons_in_place_is_stopped_because_nothing_could_be_measured() -> None:
    class InPlace(ModelReplacement):
        """Writes the trigger into the batches that it was given."""

        def poison(self, batches: Batches, state: State) -> Batches:
            batches.x[:, :, :1] = 1.0
            return batches

    config = tiny(attack={"type": "in-place", "clients": [0], "rounds": [2]})
    with pytest.raises(PluginFailure, match=r"poison\(\) \(.*test_every_attack.py:\d+\) changed what it was given"):
        played(federation_of(config, {"in-place": InPlace}))
