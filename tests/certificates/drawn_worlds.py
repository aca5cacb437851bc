"""Worlds drawn at random, attacked and clean, and what must hold of each of them.

They share data, batches and noise; one is attacked by clients that know everything. All bounds come from the ledger of
the attacked world alone, as in a real run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import numpy as np
from crfl_certificates.pathwise_linear import PathwiseLinear
from crfl_certificates.pathwise_smoothed import PathwiseSmoothed
from hypothesis import assume
from hypothesis import strategies as st

from crfl_core import Threat
from crfl_core.certification.drift import DriftBound
from crfl_core.extend import ConfigError, Level, RunError
from tests.certificates.federations import small
from tests.certificates.worlds import World, attacked, federation_of, honest_world, scaled_world

ROUNDING_FACTOR = 1 + 1e-12
"""Relative allowance for the sums of costs; what training rounds is `DriftBound.rounding`."""
FEATURES = st.sampled_from(
    [
        ({"type": "unit-ball", "radius": 0.5}, 1.0),
        ({"type": "unit-ball", "radius": 4.0}, 1.0),
        ({"type": "unit-sphere"}, 1.0),
        ({"type": "random-fourier", "outputs": 40, "bandwidth": 3.0}, 1.0),
        ([], 8.0),
    ]
)
"""Feature maps with the largest norm behind them; 8 is that of 64 pixels in [0, 1]."""


@st.composite
def federations(draw: st.DrawFn) -> dict[str, Any]:
    """Clients that train in every way that the certificates allow, up to the largest rate."""
    features, norm = draw(FEATURES)
    bias, decay = draw(st.booleans()), draw(st.sampled_from([0.0, 0.01, 0.3, 1.0]))
    beta = (norm**2 + bias) / 2
    mu = draw(st.sampled_from([0.0, 0.0, 0.1, 1.0]))
    limit = min(2 / (beta + decay + 2 * mu), 1 / (decay + mu) if decay + mu else np.inf)
    rounds = draw(st.integers(1, 5))
    shares = draw(
        st.lists(st.sampled_from([0.05, 0.5, 0.999]), min_size=1, max_size=1)
        | st.lists(st.sampled_from([0.05, 0.5, 0.999]), min_size=rounds, max_size=rounds)
    )
    rates = [share * limit for share in shares]
    partial = draw(st.booleans())
    clients = draw(st.integers(2, 5))
    partition: dict[str, Any] = draw(st.sampled_from([{"type": "iid"}, {"type": "dirichlet", "alpha": 5.0}]))
    return small(
        seed=draw(st.integers(0, 10**6)),
        rounds=rounds,
        partition=partition | {"clients": clients},
        model={"type": "softmax", "bias": bias, "features": features},
        training={
            "algorithm": {"type": "fedprox", "mu": mu} if mu else "sgd",
            "learning_rate": rates[0] if len(rates) == 1 else rates,
            "steps": draw(st.integers(1, 6)),
            "batch_size": draw(st.sampled_from([1, 7, 16, 40])),
            "drop_last": draw(st.booleans()),
            "weight_decay": decay,
            "participation": 0.6 if partial else 1.0,
        },
        server={
            "clip_norm": draw(st.sampled_from([0.3, 4.0])),
            "noise_std": draw(st.sampled_from([0.0, 0.05])),
            "cap_updates": False,
            "optimiser": draw(
                st.sampled_from(["none", {"type": "rate", "learning_rate": 0.3}, {"type": "rate", "decay": 0.7}])
            ),
        },
        aggregation=draw(
            st.sampled_from(
                [
                    [{"type": "fedavg"}],
                    [{"type": "fedavg", "weighting": "uniform"}],
                    [{"type": "update-cap", "bound": "honest"}, {"type": "fedavg"}],
                    [{"type": "update-cap", "bound": 500.0}, {"type": "fedavg"}],
                ]
            )
        ),
        attack={
            "clients": draw(st.lists(st.integers(0, clients - 1), min_size=1, max_size=2, unique=True)),
            "rounds": list(range(1, rounds + 1))
            if partial
            else draw(st.lists(st.integers(1, rounds), min_size=1, unique=True)),
        },
    )


@st.composite
def data_attacks(draw: st.DrawFn) -> dict[str, Any]:
    """A federation with attackers that poison their data, multiply, and train with rates and steps of their own."""
    config = draw(federations())
    rate = float(np.max(config["training"]["learning_rate"]))
    config["attack"] |= {
        "type": "steering",
        "kind": draw(st.sampled_from(["features", "labels", "features+labels", "replacement"])),
        "ratio": draw(st.sampled_from([0.1, 0.5, 1.0])),
        "delta": draw(st.sampled_from([0.05, 0.5, 3.0])),
        "scale": draw(st.sampled_from([1.0, 1.0, 1.5, 10.0])),
        "last_steps_only": draw(st.booleans()),
    }
    if draw(st.booleans()):
        config["attack"]["learning_rate"] = rate * draw(st.sampled_from([0.01, 0.3]))
    if draw(st.booleans()):
        config["attack"]["steps"] = draw(st.integers(1, 9))
    return config


def worlds(config: dict[str, Any], sample: int = 0, runner_up: int = 1) -> tuple[World, dict[str, World]]:
    """The attacked world, and the clean ones by name."""
    try:
        federation = federation_of(config)
        honest = honest_world(federation)
        world = attacked(federation, honest, sample, runner_up)
    except (ConfigError, RunError):  # no attacker was drawn in any round, or no honest client
        assume(False)
    clean = {"honest": honest}
    if config["attack"]["type"] == "steering":
        clean["scaled"] = scaled_world(federation)
    return world, clean


def threats_of(world: World, clean_world: str) -> list[Threat]:
    """The attackers by name, and as a number of unknown ones."""
    named = world.threat(clean_world=clean_world)
    return [named, named.model_copy(update={"clients": named.attackers})]


def scenarios(world: World, threat: Threat) -> Iterator[DriftBound]:
    """What a threat can do up to every round, by caps alone and by what was really submitted."""
    for horizon, observed in product(range(1, world.federation.config.rounds + 1), (False, True)):
        yield DriftBound(world.ledger, threat, horizon, observed=observed)


def drift_between(one: World, other: World, number: int) -> float:
    """How far apart the models of two worlds are in a round, before its noise."""
    return float(np.linalg.norm(one.aggregate(number) - other.aggregate(number)))


def assert_nothing_flips(world: World, clean: World, threat: Threat, level: Level, size: float) -> None:
    """Whatever is certified against an attack of this size is predicted without the attack as well."""
    expected = clean.predictions
    for certificate in (PathwiseLinear(), PathwiseSmoothed()):
        guarantee = world.certify(certificate, threat, level)
        certified = guarantee.radius >= size
        np.testing.assert_array_equal(guarantee.prediction[certified], expected[certified])


def pulled(training: dict[str, Any]) -> bool:
    """Whether anything but data acts on the models, so that no rate may be arbitrarily large."""
    return bool(training["weight_decay"]) or training["algorithm"] != "sgd"


@st.composite
def update_attacks(draw: st.DrawFn) -> dict[str, Any]:
    """A federation whose server caps updates, with attackers that submit anything."""
    config = draw(federations())
    config["aggregation"] = [
        {"type": "update-cap", "bound": draw(st.sampled_from(["honest", 500.0]))},
        {"type": "fedavg"},
    ]
    config["attack"] |= {
        "type": "submitting",
        "how": draw(st.sampled_from(["push", "push", "reverse", "pull", "not-finite"])),
        "size": draw(st.sampled_from([0.1, 3.0, 1e6])),
        "learning_rate": draw(st.sampled_from([None, 1e3])) if not pulled(config["training"]) else None,
    }
    return config


def assert_poison_is_bounded(world: World, clean_worlds: Mapping[str, World]) -> None:
    """Poisoned data move no model beyond the bound of any level, and change nothing that is certified."""
    rows = world.ledger.clients
    np.testing.assert_array_equal(rows.weight[~rows.attacking], rows.weight_bound[~rows.attacking])  # never capped
    delta, has_radius = float(rows.delta.max()), world.federation.facts.feature_lipschitz is not None
    for name, clean in clean_worlds.items():
        for threat in threats_of(world, name):
            for scenario in scenarios(world, threat):
                actual = drift_between(world, clean, scenario.horizon) - scenario.rounding
                if has_radius:
                    assert actual <= scenario.feature_cost(np.array([delta]))[0] * ROUNDING_FACTOR
                assert actual <= scenario.sample_cost(np.array([threat.poison_ratio]))[0] * ROUNDING_FACTOR
                assert actual <= scenario.client_costs()[threat.attackers] * ROUNDING_FACTOR
            if has_radius:
                assert_nothing_flips(world, clean, threat, "feature", delta)
            assert_nothing_flips(world, clean, threat, "sample", threat.poison_ratio)
            assert_nothing_flips(world, clean, threat, "client", threat.attackers)
