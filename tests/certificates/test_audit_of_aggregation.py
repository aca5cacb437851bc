"""Assumptions about the server: its weights, caps and memory, bad updates, and plugins that judge rounds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from crfl_core.extend import (
    Clients,
    ClientUpdates,
    LinearAggregator,
    RuleResult,
    Stage,
    StageResult,
    State,
    Tracker,
    hookimpl,
)
from crfl_core.plugin_loading.hooks import Hooks
from tests.certificates.audited import LABELS, PATHWISE, SERVER, SOUND, attacked_world, audits, refused, small
from tests.certificates.worlds import federation_of, play


@pytest.mark.parametrize("rule", [{"type": "rfa"}, {"type": "krum", "f": 1}, {"type": "median"}, {"type": "foolsgold"}])
def test_rules_that_look_at_the_updates_get_no_pathwise_certificate(rule: dict[str, Any]) -> None:
    """The paper's is conditional; postprocess stands where a breakdown is known."""
    config = small(partition={"type": "iid", "clients": 6}, aggregation=[rule])
    found = audits(attacked_world(config))
    known = rule["type"] in ("rfa", "krum")
    assert refused(found) == PATHWISE | (set() if known else {"postprocess"})
    assert "they depend on all updates" in found["tail"].refusal
    assert "use a rule whose weights are fixed, or the certificate 'postprocess'" in found["tail"].refusal
    assert any("fixed aggregation weights" in condition for condition in found["paper"].conditions)
    if not known:
        reason = f"breakdown of the aggregation rule: found declared by {rule['type']!r} of crfl for up to 0 attackers"
        assert reason in found["postprocess"].refusal


def test_a_breakdown_is_one_against_the_honest_clean_world_and_for_so_many_attackers() -> None:
    world = attacked_world(small(partition={"type": "iid", "clients": 6}, aggregation=[{"type": "rfa"}]))
    assert "honest" in audits(world, world.threat(clean_world="scaled"))["postprocess"].refusal
    assert not audits(world)["postprocess"].refusal


def test_a_cap_that_honest_clients_notice_is_refused_where_rounds_follow() -> None:
    config = small(aggregation=[{"type": "update-cap", "bound": 0.01}, {"type": "fedavg"}])
    world = attacked_world(config)
    found = audits(world)
    assert refused(found) == PATHWISE
    bound = world.ledger.clients.update_bound[0]
    assert f"a cap of 0.01 below what an honest client may submit, {bound:.4g}" in found["linear"].refusal
    assert "set server.cap_updates = true" in found["linear"].refusal


class Shares(LinearAggregator):
    """Fixed weights that need not be an average."""

    shares: tuple[float, ...]

    def weights(self, clients: Clients) -> Tensor:
        return torch.tensor(self.shares, dtype=torch.float64)


@pytest.mark.parametrize(
    ("shares", "reason", "who"),
    [
        ([0.25, 0.25, 0.25, 0.3], "sums of 1.05 to 1.05", PATHWISE),
        ([1.0, 0.5, 0.5, -1.0], "a weight of -1", SOUND),
    ],
    ids=["above one", "negative"],
)
def test_weights_must_be_an_average(shares: list[float], reason: str, who: set[str]) -> None:
    """A negative weight makes a round expand, though the sum is 1."""
    world = attacked_world(small(aggregation=[{"type": "shares", "shares": shares}]), {"shares": Shares})
    found = audits(world)
    assert refused(found) == who
    assert reason in found["linear"].refusal


def test_weights_may_leave_the_model_a_share_of_itself() -> None:
    shares = {"type": "shares", "shares": [0.25, 0.25, 0.25, 0.2]}
    found = audits(attacked_world(small(aggregation=[shares]), {"shares": Shares}))
    assert refused(found) == set()


class Replacing(Tracker):
    """Puts other weights in the record, which reconstruct the aggregate up to rounding."""

    @hookimpl
    def crfl_effective_weights(self, updates: ClientUpdates, aggregate: RuleResult) -> Tensor:
        return torch.nextafter(aggregate.weights, torch.ones_like(aggregate.weights))


def test_replaced_weights_are_never_fixed() -> None:
    federation = federation_of(small())
    world = play(federation, Hooks([("tracker", Replacing())]))
    found = audits(world)
    assert refused(found) == SOUND
    assert "round 1: replaced by tracker 'Replacing'" in found["linear"].refusal


class Judge(Tracker):
    """Sees no updates, but may reject the model."""

    @hookimpl
    def crfl_accept_round(self, candidate: Tensor) -> bool:
        return bool(torch.isfinite(candidate).all())


def test_a_plugin_that_judges_rounds_could_judge_the_clean_world_differently() -> None:
    """Even if it never rejected anything here, and even for postprocess: the attacked round itself was judged."""
    config = small(trackers=[{"type": "judge"}])
    found = audits(attacked_world(config, {"judge": Judge}))
    assert refused(found) == SOUND
    for name in SOUND:
        assert "remove the plugin that judges rounds" in found[name].refusal


class Remembering(Stage):
    """Keeps what it saw for the next round."""

    def transform(self, updates: ClientUpdates, state: State) -> StageResult:
        eye = torch.eye(len(updates.values), dtype=updates.values.dtype)
        return StageResult(updates.values.clone(), eye, state={"last": updates.values.mean(0)})


def test_memory_of_the_attacked_round_is_not_hidden_by_noise() -> None:
    config = small(aggregation=[{"type": "remembering"}, {"type": "fedavg"}])
    found = audits(attacked_world(config, {"remembering": Remembering}))
    assert refused(found) == SOUND
    assert "they depend on all updates" in found["tail"].refusal  # no other step has a memory
    assert "only the noisy model leaves the attacked round" in found["postprocess"].refusal
    last = small(aggregation=[{"type": "remembering"}, {"type": "fedavg"}], attack=LABELS | {"rounds": [4]})
    found = audits(attacked_world(last, {"remembering": Remembering}))
    assert refused(found) == SOUND
    assert "only the noisy model leaves" not in found["postprocess"].refusal  # there is no later round to remember it


def test_bad_updates_are_covered_only_as_those_of_arbitrary_attackers() -> None:
    """The server takes zero for them. Nothing about poisoned data says that an attacker may submit zero."""
    broken = {"type": "submitting", "clients": [0], "rounds": [2], "how": "not-finite"}
    cap = [{"type": "update-cap", "bound": "honest"}, {"type": "fedavg"}]
    world = attacked_world(small(attack=broken, aggregation=cap))
    assert not refused(audits(world))
    for threat in (
        world.threat(poison="features+labels"),
        world.threat(clients=[1]),
        world.threat(clients=0),
        world.threat(rounds=[1]),
    ):
        found = audits(world, threat)
        assert refused(found) == SOUND
        assert "1 bad updates" in found["linear"].refusal
    dropping = attacked_world(small(attack=broken, server=SERVER | {"bad_update": "drop"}))
    found = audits(dropping)
    assert refused(found) == SOUND
    assert "set server.bad_update = 'zero'" in found["linear"].refusal


def test_arbitrary_updates_need_a_cap_and_scales_are_declared_without_one() -> None:
    """Of the run itself it is known what was submitted; of continuations, and of attacks to come, it is not."""
    world = attacked_world(small())
    found = audits(world, world.threat(poison="update"))
    assert refused(found) == {"tail", "postprocess"}
    assert "set server.cap_updates = true" in found["tail"].refusal
    assert found["linear"].directions_at("client") == ("backward",)
    scaled = audits(world, world.threat(poison="update", clean_world="scaled"))
    assert refused(scaled) == SOUND
    (check,) = (check for check in audits(world)["linear"].checks if check.name == "size of malicious updates")
    assert (check.status, check.measured) == ("declared", "scale at most 1")
