"""A fixed rate of the server keeps all certificates, and bounds are attained; other optimisers are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from crfl_certificates.paper import Paper
from crfl_certificates.pathwise_linear import PathwiseLinear
from crfl_certificates.postprocess import Postprocess
from crfl_certificates.tail import Tail

from crfl_core.certification import certifier as certification
from crfl_core.certification.drift import DriftBound
from crfl_core.extend import Certificate, FixedRate, RoundFacts
from crfl_core.runs.worlds import with_attack
from crfl_core.training.steering import PoisonAim
from tests.certificates.attackers import Submitting
from tests.certificates.federations import certifiable, coins, small
from tests.certificates.worlds import World, federation_of, honest_world, play

CERTIFICATES: dict[str, Certificate] = {
    "paper": Paper(),
    "pathwise-linear": PathwiseLinear(),
    "tail": Tail(),
    "postprocess": Postprocess(),
}
CAPPED = [{"type": "update-cap", "bound": "honest"}, {"type": "fedavg"}]


def with_optimiser(config: dict[str, Any], optimiser: Any) -> dict[str, Any]:
    return config | {"server": config["server"] | {"optimiser": optimiser}}


def refusals(world: World) -> dict[str, str]:
    threat = world.threat(poison="update", clients=1, rounds=[2])
    found = {
        name: certification.audit_certificate(one, world.ledger, threat).refusal for name, one in CERTIFICATES.items()
    }
    return {name: reason for name, reason in found.items() if reason}


@pytest.mark.parametrize("rate", [1.0, 0.5, 0.1])
def test_a_pushing_client_moves_the_model_exactly_as_far_as_the_bound_times_the_rate(rate: float) -> None:
    """Its cap is U and the clean world trains nothing in its direction: p s C on one side, p s U allowed on the other.

    What it pushed stays, faded by `(1 - s) + s c` in every round: honest data know nothing of that direction.
    """
    decay = {"learning_rate": 0.5, "steps": 2, "weight_decay": 0.5}
    config = with_optimiser(coins(decay, rounds=6, aggregation=CAPPED), {"type": "rate", "learning_rate": rate})
    federation = federation_of(config)
    direction = torch.tensor([0.0, 1.0, 0.0, -1.0], dtype=torch.float64) / 2**0.5
    aim = PoisonAim(federation.maps, federation.model, torch.zeros(4), direction, federation.data.facts.domain)
    world = play(with_attack(federation, Submitting(clients=(0,), rounds=(1,)).aimed(aim)))
    clean = honest_world(federation)
    kept = (1 - 0.5 * 0.5) ** 2
    reach = world.ledger.clients.update_bound[0]
    for number in range(1, 7):
        drift = float(np.linalg.norm(world.aggregate(number) - clean.aggregate(number)))
        assert drift == pytest.approx(0.5 * rate * reach * (1 - rate + rate * kept) ** (number - 1), rel=1e-3)
        cost = DriftBound(world.ledger, world.threat(), number).client_costs()[1]
        assert drift <= cost == pytest.approx(2 * drift, rel=1e-3)


def test_smaller_steps_of_the_server_fade_an_attack_more_slowly_but_let_in_less() -> None:
    """The drift of one round is s times as large, what a later round keeps of it 1 - s + s c instead of c."""
    threat: dict[str, Any] = {"poison": "update", "clients": 1, "rounds": [5]}
    costs = {}
    for rate in (1.0, 0.5):
        federation = federation_of(with_optimiser(certifiable(), {"type": "rate", "learning_rate": rate}))
        world = play(federation)
        scenario = DriftBound(world.ledger, world.threat(**threat), 30)
        (attacked,) = scenario.attacked
        assert attacked.fade == pytest.approx((1 - rate + rate * 0.99) ** 25, rel=1e-9)
        costs[rate] = attacked.arbitrary_cost.max()
        assert not certification.audit_certificate(PathwiseLinear(), world.ledger, world.threat(**threat)).refusal
    assert costs[0.5] == pytest.approx(0.5 * costs[1.0])


def test_rates_up_to_1_that_change_from_round_to_round_refuse_nothing() -> None:
    config = small(aggregation=CAPPED)
    plain = refusals(play(federation_of(config)))
    rated = refusals(play(federation_of(with_optimiser(config, {"type": "rate", "decay": 0.8}))))
    assert plain == rated == {}


def test_a_rate_above_1_is_refused_where_rounds_must_not_expand() -> None:
    world = play(federation_of(with_optimiser(small(aggregation=CAPPED), {"type": "rate", "learning_rate": 1.5})))
    found = refusals(world)
    assert "found sums of 1.5 to 1.5, needs fixed weights of at most 1 in all" in found["pathwise-linear"]
    assert "aggregation weights are fixed" in found["tail"]
    assert "postprocess" not in found


def test_one_round_above_1_is_enough_to_be_refused() -> None:
    class Hasty(FixedRate):
        """Above 1 in round 3 alone."""

        def rate(self, facts: RoundFacts) -> float:
            return 1.01 if facts.number == 3 else 0.5

    world = play(federation_of(with_optimiser(small(aggregation=CAPPED), "hasty"), {"hasty": Hasty}))
    assert "found sums of 0.5 to 1.01" in refusals(world)["pathwise-linear"]


@pytest.mark.parametrize("optimiser", ["momentum", "adam", "yogi", "adagrad"])
@pytest.mark.parametrize("aggregation", [CAPPED, [{"type": "krum", "f": 0}]])
def test_certificates_that_need_a_plain_step_are_refused_and_say_why(
    optimiser: str, aggregation: list[dict[str, Any]]
) -> None:
    found = refusals(play(federation_of(with_optimiser(small(aggregation=aggregation), optimiser))))
    assert set(found) == set(CERTIFICATES)
    for name, reason in found.items():
        assert f"server.optimiser {optimiser!r} looks at the updates and remembers them" in reason, name
        assert "use server.optimiser = { type = 'rate' }, or none" in reason


def test_momentum_without_memory_is_refused_all_the_same() -> None:
    """With beta = 0 it is a plain step, but nothing that a plugin says is believed: the rate is the one to use."""
    found = refusals(play(federation_of(with_optimiser(small(aggregation=CAPPED), {"type": "momentum", "beta": 0.0}))))
    assert set(found) == set(CERTIFICATES)


def test_an_optimiser_that_only_looks_leaves_later_rounds_to_postprocess() -> None:
    """Rounds after the attacked one may do what they like; that the attacked one does is what is refused."""
    world = play(federation_of(with_optimiser(small(aggregation=CAPPED, rounds=3), {"type": "rate"})))
    looking = tuple(
        record.model_copy(update={"server_rate": None, "depends": "all"}) if record.round == 3 else record
        for record in world.ledger.rounds
    )
    ledger = type(world.ledger)(world.ledger.facts, looking, world.ledger.clients)
    threat = world.threat(poison="update", clients=1, rounds=[2])
    checks = certification.audit_certificate(Postprocess(), ledger, threat).checks
    assert [check.name for check in checks if check.status == "failed"] == []
