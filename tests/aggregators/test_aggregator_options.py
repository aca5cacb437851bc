"""Options that make no sense are refused before anything is trained, with the inequality in words."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import crfl_core
from crfl_core.extend import ConfigError
from tests.oracle import federation_of, tiny

Chain = list[dict[str, Any]]


def chain(*steps: dict[str, Any] | str) -> Chain:
    """Steps by name or table."""
    return [{"type": step} if isinstance(step, str) else step for step in steps]


BAD: list[tuple[Chain, str, str]] = [
    (chain({"type": "krum", "f": 3}), "aggregation.0.f", "krum needs clients >= 2 f + 3, found 8 clients and f = 3"),
    (chain({"type": "multi-krum", "f": 3}), "aggregation.0.f", "multi-krum needs clients >= 2 f + 3, found 8 clients"),
    (
        chain({"type": "multi-krum", "f": 2, "keep": 7}),
        "aggregation.0.keep",
        "must be at most clients - f, the honest ones, found keep = 7 for 8 clients and f = 2",
    ),
    (
        chain({"type": "bulyan", "f": 2}),
        "aggregation.0.f",
        "bulyan needs clients >= 4 f + 3, found 8 clients and f = 2",
    ),
    (
        chain({"type": "trimmed-mean", "trim": 4}),
        "aggregation.0.trim",
        "2 x trim must be below the number of clients, found trim = 4 for 8 clients",
    ),
    (
        chain({"type": "median-of-means", "groups": 9}),
        "aggregation.0.groups",
        "must be at most the number of clients, found 9 groups for 8 clients",
    ),
    (
        chain({"type": "nearest-neighbour-mixing", "f": 4}, "fedavg"),
        "aggregation.0.f",
        "needs clients > 2 f, found 8 clients and f = 4",
    ),
    (
        chain({"type": "bucketing", "size": 8}, "fedavg"),
        "aggregation.0.size",
        "must be below the number of clients, found size = 8 for 8 clients",
    ),
    (
        chain({"type": "norm-filter", "f": 8}, "fedavg"),
        "aggregation.0.f",
        "must be below the number of clients, found f = 8 for 8 clients",
    ),
    # Later steps are checked against what earlier ones leave them.
    (
        chain({"type": "bucketing", "size": 2}, {"type": "krum", "f": 1}),
        "aggregation.1.f",
        "krum needs clients >= 2 f + 3, found 4 clients and f = 1",
    ),
    (
        chain({"type": "norm-filter", "f": 4}, {"type": "norm-filter", "f": 2}, "residual-reweighting"),
        "aggregation.2.type",
        "a line needs clients >= 3, found 2",
    ),
    # These are wrong whatever the clients are.
    (chain({"type": "krum", "f": -1}), "aggregation.0.f", "greater than or equal to 0"),
    (chain({"type": "krum", "keep": 2}), "aggregation.0.keep", "unknown key"),
    (chain({"type": "norm-bound", "bound": 0}, "fedavg"), "aggregation.0.bound", "greater than 0"),
    (chain({"type": "update-cap", "bound": "fair"}, "fedavg"), "aggregation.0.bound", "honest"),
    (chain({"type": "bucketing", "size": 1}, "fedavg"), "aggregation.0.size", "greater than or equal to 2"),
    (chain({"type": "cosine-filter", "threshold": 2}, "fedavg"), "aggregation.0.threshold", "less than or equal to 1"),
    (chain({"type": "rfa", "iterations": 0}), "aggregation.0.iterations", "greater than or equal to 1"),
    (chain({"type": "centered-clipping", "radius": -1.0}), "aggregation.0.radius", "greater than 0"),
    (chain({"type": "weak-noise", "std": -1.0}, "fedavg"), "aggregation.0.std", "greater than or equal to 0"),
    (
        chain({"type": "baffle", "quorum": 5, "validators": 4}, "fedavg"),
        "aggregation.0",
        "quorum must be at most validators, or nothing is ever rejected: found quorum = 5 with 4 validators",
    ),
    (chain("krum", "fedavg"), "aggregation", "'krum' is a rule and must be the last entry"),
    (chain("fedavg", "bucketing"), "aggregation", "the last entry must be a rule"),
]


@pytest.mark.parametrize(
    ("aggregation", "key", "message"), BAD, ids=[f"{key}-{i}" for i, (_, key, _) in enumerate(BAD)]
)
def test_is_refused_with_key_and_inequality(aggregation: Chain, key: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        federation_of(tiny(aggregation=aggregation))
    assert key in f"{caught.value.key} {caught.value}"


def test_an_honest_cap_needs_a_model_whose_gradients_are_bounded() -> None:
    settings = tiny(model={"type": "mlp"}, aggregation=chain("update-cap", "fedavg"))
    with pytest.raises(ConfigError, match="which only softmax regression on inputs of bounded norm has"):
        federation_of(settings)
    federation_of(settings | {"aggregation": chain({"type": "update-cap", "bound": 2.0}, "fedavg")})


def test_nothing_is_written_before_the_options_were_checked(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        crfl_core.run(tiny(aggregation=chain({"type": "krum", "f": 3})), out=tmp_path / "run")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("bad", ["zero", "drop"])
@pytest.mark.parametrize("rule", ["krum", "bulyan", "trimmed-mean", "rfa", "residual-reweighting"])
def test_lost_updates_do_not_stop_a_rule_that_would_refuse_so_few_clients(rule: str, bad: str, tmp_path: Path) -> None:
    """Attackers could otherwise stop a federation by submitting nonsense. Six of seven overflow; one is left."""
    attack = {"type": "model-replacement", "clients": [0, 1, 2, 3, 4, 5], "rounds": [2], "scale": 1e38}
    config = tiny(
        partition={"type": "iid", "clients": 7},
        attack=attack,
        aggregation=chain(rule),
        server={"clip_norm": 4.0, "noise_std": 0.02, "bad_update": bad},
        certificates=[],
    )
    ledger = crfl_core.run(config, out=tmp_path / "run").ledger
    rows = ledger.clients.of_round(2)
    assert ledger.round(2).quarantined == 6
    assert rows.weight.tolist() == pytest.approx([0.0] * 6 + [1.0])
