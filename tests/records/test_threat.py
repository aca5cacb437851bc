"""What the attacker is assumed to do, where the assumption comes from, and when it does not cover what happened."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crfl_core import Threat
from crfl_core.extend import ConfigError
from crfl_core.records.schedules import RoundRange
from crfl_core.records.threat import Poison, ThreatSettings, covers
from tests.oracle import federation_of, tiny

ASSUMED = Threat(clients=(0, 3), rounds=(10,), poison="features", poison_ratio=0.1, delta=0.5, scale=10.0)


def changed(**update: Any) -> Threat:
    """The assumed threat with some keys different."""
    return ASSUMED.model_copy(update=update)


def test_a_threat_covers_itself_and_everything_weaker() -> None:
    weaker = changed(clients=(3,), poison_ratio=0.05, delta=0.1, scale=2.0)
    assert ASSUMED.excess(ASSUMED) == ASSUMED.excess(weaker) == ()


@pytest.mark.parametrize(
    ("realised", "reason"),
    [
        ({"clients": (0, 5)}, "clients [5] attacked and are not among the assumed ones"),
        ({"rounds": (10, 11)}, "rounds [11] were attacked and are not among the assumed ones"),
        ({"poison_ratio": 0.2}, "poison_ratio 0.2 is above the assumed 0.1"),
        ({"delta": 0.6}, "delta 0.6 is above the assumed 0.5"),
        ({"scale": 11.0}, "scale 11 is above the assumed 10"),
        ({"poison": "features+labels"}, "poison 'features+labels' is not covered by 'features'"),
    ],
)
def test_every_way_to_exceed_a_threat_is_named(realised: dict[str, Any], reason: str) -> None:
    assert ASSUMED.excess(changed(**realised)) == (reason,)


def test_a_number_of_unknown_clients_is_compared_with_how_many_attacked() -> None:
    assumed = changed(clients=1)
    assert assumed.excess(changed(clients=(7,))) == ()
    assert assumed.excess(changed(clients=(1, 7))) == ("2 clients attacked, 1 assumed",)


@pytest.mark.parametrize("key", ["poison_ratio", "delta", "scale"])
def test_not_even_the_last_digit_may_be_exceeded(key: str) -> None:
    """The measurement error is not part of the user's allowance: it is added to the assumed threat."""
    above = float(np.nextafter(getattr(ASSUMED, key), np.inf))
    (reason,) = ASSUMED.excess(changed(**{key: above}))
    assert reason.startswith(f"{key} ")
    assert ASSUMED.enlarge(shares=1e-9, sizes=1e-9).excess(changed(**{key: above})) == ()


def test_a_threat_is_enlarged_in_every_size_but_who_does_not_scale_does_not_at_all() -> None:
    larger = changed(input_bound=2.0, scale=1.0, poison_ratio=0.8).enlarge(shares=0.5, sizes=0.25)
    assert (larger.poison_ratio, larger.delta, larger.scale, larger.input_bound) == (1.0, 0.625, 1.0, 2.5)
    assert changed(delta=None).enlarge(shares=0.5, sizes=0.25).delta is None


def test_an_open_delta_is_what_the_certificate_answers_and_cannot_be_exceeded() -> None:
    assert changed(delta=None).excess(changed(delta=100.0)) == ()


@given(one=st.sampled_from(get_args(Poison)), other=st.sampled_from(get_args(Poison)))
def test_kinds_of_poison_are_ordered(one: Poison, other: Poison) -> None:
    """Every kind covers itself, "update" covers all, and two kinds cover each other only if they are the same."""
    assert covers(one, one)
    assert covers("update", one)
    assert not (covers(one, other) and covers(other, one)) or one == other


def test_unset_keys_come_from_the_attack_and_set_ones_win() -> None:
    resolved = ThreatSettings(scale=20.0, clean_world="scaled").resolve(ASSUMED, total_rounds=30)
    assert resolved == changed(scale=20.0, clean_world="scaled", delta=None)


def test_without_an_attack_one_unknown_client_attacks_in_the_final_round() -> None:
    resolved = ThreatSettings().resolve(None, total_rounds=30)
    assert (resolved.clients, resolved.rounds, resolved.clean_world) == (1, (30,), "honest")
    assert resolved.attackers == 1


def test_a_range_of_rounds_is_written_out() -> None:
    assert ThreatSettings(rounds=RoundRange(first=2, every=3)).resolve(None, total_rounds=9).rounds == (2, 5, 8)


@pytest.mark.parametrize(
    ("threat", "key"),
    [({"clients": 9}, "clients"), ({"clients": [0, 8]}, "clients"), ({"rounds": [5]}, "rounds")],
)
def test_assumed_clients_and_rounds_must_exist(threat: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        federation_of(tiny(threat=threat))
    assert caught.value.key == f"threat.{key}"
