"""Every assumption can fail, and then refuses exactly the certificate or level that needs it, with the remedy."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any, Literal

import numpy as np
import pytest
import torch
from crfl_certificates.paper import Paper
from crfl_certificates.pathwise_linear import PathwiseLinear
from crfl_certificates.pathwise_smoothed import PathwiseSmoothed
from crfl_certificates.postprocess import Postprocess
from crfl_certificates.tail import Tail
from torch import Tensor

import crfl_core
from crfl_core import Threat
from crfl_core.certification import audits as certification
from crfl_core.certification.audits import Audit
from crfl_core.extend import (
    Attack,
    Batches,
    Certificate,
    Clients,
    ClientUpdates,
    FederatedData,
    LinearAggregator,
    Plugin,
    RuleResult,
    Stage,
    StageResult,
    State,
    Streams,
    Tracker,
    hookimpl,
)
from crfl_core.hooks import Hooks
from crfl_interface.threat import ThreatSettings
from tests.certificates.attackers import Knowledge, Steering, Submitting
from tests.certificates.federations import small as small_config
from tests.certificates.worlds import PLUGINS, World, attacked, federation_of, honest_world, play, with_attack

CERTIFICATES: dict[str, Certificate] = {
    "paper": Paper(),
    "linear": PathwiseLinear(),
    "smoothed": PathwiseSmoothed(),
    "tail": Tail(),
    "postprocess": Postprocess(),
}
SOUND = {"linear", "smoothed", "tail", "postprocess"}
PATHWISE = {"linear", "smoothed", "tail"}
LABELS = {"type": "steering", "clients": [0], "rounds": [2], "kind": "labels", "ratio": 0.5}
SERVER = {"clip_norm": 4.0, "noise_std": 0.05, "cap_updates": False}


def small(**changes: Any) -> dict[str, Any]:
    """The small federation with noise, one of its clients flipping labels in round 2."""
    return small_config(**({"server": SERVER, "attack": LABELS} | changes))


def attacked_world(config: dict[str, Any], plugins: dict[str, type[Plugin]] | None = None) -> World:
    federation = federation_of(config, plugins)
    if isinstance(federation.attack, (Steering, Submitting)):
        return attacked(federation, honest_world(federation))
    return play(federation)


def audits(world: World, threat: Threat | None = None) -> dict[str, Audit]:
    """The audits of all certificates. Whatever fails says what was found, what is needed and what to do."""
    assumed = world.threat() if threat is None else threat
    found = {name: certification.audit(one, world.ledger, assumed) for name, one in CERTIFICATES.items()}
    for audit in found.values():
        for check in audit.checks:
            assert check.status != "failed" or (check.measured and check.required and check.remedy), check
    return found


def refused(found: dict[str, Audit]) -> set[str]:
    """The certificates that are refused altogether."""
    return {name for name, audit in found.items() if audit.refusal}


def test_a_run_as_the_certificates_like_it_holds_every_check() -> None:
    capped = small(aggregation=[{"type": "update-cap"}, {"type": "fedavg"}], seeds={"votes": "secret"})
    attacked, clean = audits(attacked_world(capped)), audits(play(federation_of(capped | {"attack": "none"})))
    for found in (attacked, clean):
        assert not refused(found)
        assert not any(audit.refusals for audit in found.values())
    assert {check.status for name in SOUND for check in clean[name].checks} == {"held"}
    checks = [check for name in SOUND for check in attacked[name].checks]
    assert {check.status for check in checks if check.direction != "forward"} == {"held"}


def test_a_rate_above_the_limit_is_refused_with_the_norm_that_makes_it_too_large() -> None:
    """The run without a feature map: inputs are long, so the loss is steep."""
    config = small(model={"type": "softmax"}, training={"learning_rate": 0.5, "steps": 2})
    world = attacked_world(config)
    found = audits(world)
    norm = np.hypot(max(world.ledger.facts.feature_norms), 1.0)
    reason = (
        f"local steps are non-expansive: found eta = 0.5 > 2/beta = {4 / norm**2:.3g} because max ||x|| = {norm:.3g}, "
        "needs eta <= 2/beta: set model.features = { type = 'unit-ball' } or lower the rate"
    )
    assert refused(found) == SOUND
    assert {found[name].refusal for name in SOUND} == {reason}
    assert any("step size" in condition for condition in found["paper"].conditions)


def test_the_rate_of_an_attacker_counts_unless_its_training_is_arbitrary_anyway() -> None:
    cap = [{"type": "update-cap", "bound": "honest"}, {"type": "fedavg"}]
    world = attacked_world(small(attack=LABELS | {"learning_rate": 50.0}, aggregation=cap))
    assert refused(audits(world)) == SOUND
    assert refused(audits(world, world.threat(poison="update"))) == set()


def test_a_rate_that_only_the_clean_world_would_use_is_found_as_well() -> None:
    training = {"learning_rate": {"per_client": [100.0, 0.5, 0.5, 0.5]}, "steps": 2}
    attack = LABELS | {"rounds": [1, 2, 3, 4], "learning_rate": 0.5}
    found = audits(attacked_world(small(training=training, attack=attack)))
    assert "eta = 100 > 2/beta" in found["linear"].refusal


def test_models_that_are_not_convex_get_only_what_needs_no_convexity() -> None:
    capped = [{"type": "update-cap", "bound": 0.5}, {"type": "fedavg"}]
    attack = {"type": "submitting", "clients": [0], "rounds": [2], "how": "reverse"}
    config = small(model={"type": "mlp", "hidden": [4]}, aggregation=capped, attack=attack)
    federation = federation_of(config)
    assert isinstance(federation.attack, Submitting)
    parameters = torch.ones(federation.facts.parameters)
    knowledge = Knowledge(federation.maps, federation.model, parameters, parameters)
    world = play(with_attack(federation, federation.attack.informed(knowledge)))
    found = audits(world)
    assert refused(found) == PATHWISE | {"paper"}
    assert "use model.type = 'softmax', or the certificate 'postprocess'" in found["linear"].refusal


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_single_precision_is_declared_and_double_precision_holds(dtype: Literal["float32", "float64"]) -> None:
    found = audits(attacked_world(small(dtype=dtype)))
    assert not refused(found)
    for name in SOUND:
        (check,) = (check for check in found[name].checks if check.name == "local steps are non-expansive")
        assert check.status == {"float32": "declared", "float64": "held"}[dtype]
        assert ("dtype = 'float64'" in check.remedy) == (dtype == "float32")


def test_inputs_without_a_bound_are_refused_until_the_threat_bounds_them() -> None:
    dataset = {"type": "cached-digits", "train_samples": 200, "test_samples": 60, "scaling": "standardise"}
    training = {"learning_rate": 0.0001, "steps": 2}
    world = attacked_world(small(dataset=dataset, model={"type": "softmax"}, training=training))
    found = audits(world)
    assert refused(found) == SOUND
    assert "input norms: found largest" in found["linear"].refusal
    assert "declared inf" in found["linear"].refusal
    assert "set threat.input_bound" in found["linear"].refusal
    assert not refused(audits(world, world.threat(input_bound=100.0)))


def test_a_fitted_scaling_is_declared_and_minmax_bounds_the_inputs() -> None:
    dataset = {"type": "cached-digits", "train_samples": 200, "test_samples": 60, "scaling": "minmax"}
    training = {"learning_rate": 0.01, "steps": 2}
    found = audits(attacked_world(small(dataset=dataset, model={"type": "softmax"}, training=training)))
    assert not refused(found)
    (check,) = (check for check in found["linear"].checks if check.name == "preprocessing is public")
    assert check.status == "declared"
    assert check.measured == "scaling 'minmax' fitted on training data, inputs within [0, 1]"


class Blinding(Attack):
    """Feeds its model inputs far outside of the domain."""

    def prepare(self, data: FederatedData, streams: Streams) -> State:
        return {}

    def poison(self, batches: Batches, state: State) -> Batches:
        return replace(batches, x=100.0 * batches.x)


def test_poisoned_inputs_outside_the_declared_domain_are_noticed() -> None:
    """Attackers that promised to keep within a domain did not: their data poison is not covered."""
    attack = {"type": "blinding", "clients": [0], "rounds": [2]}
    config = small(model={"type": "softmax"}, training={"learning_rate": 0.01, "steps": 2}, attack=attack)
    world = attacked_world(config, {"blinding": Blinding})
    found = audits(world)
    assert refused(found) == SOUND
    assert f"poisoned {100 * max(world.ledger.facts.feature_norms[:1]):.2g}"[:10] in found["linear"].refusal
    inside = attacked_world(small(attack=attack), {"blinding": Blinding})  # the unit ball maps them back
    assert not refused(audits(inside))


def test_inputs_beyond_their_own_declared_bound_are_refused() -> None:
    world = attacked_world(small())
    facts = world.ledger.facts.model_copy(update={"feature_norm_bound": 0.5})
    found = certification.audit(PathwiseLinear(), replace(world.ledger, facts=facts), world.threat())
    assert found.refusal.startswith("input norms: found largest 1, poisoned 1, declared 0.5")


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
        assert (
            "breakdown of the aggregation rule: found stated by the rule for up to 0 attackers"
            in found["postprocess"].refusal
        )


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
    """Puts other weights in the record, which reconstruct the aggregate as well."""

    @hookimpl
    def crfl_effective_weights(self, updates: ClientUpdates, aggregate: RuleResult) -> Tensor:
        return aggregate.weights.clone()


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
    assert "they depend on all updates" in found["tail"].refusal  # nobody else has a memory
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


def test_an_attack_after_the_fresh_noise_begins_is_refused() -> None:
    world = attacked_world(small())
    early = certification.audit(Tail(resample_from=1), world.ledger, world.threat())
    assert early.refusal == (
        "attacked rounds: found round 2, needs within 1..1, before the noise is drawn again: "
        "set threat.rounds within 1..1, or a later resample_from"
    )
    assert not certification.audit(Tail(resample_from=3), world.ledger, world.threat()).refusal


def test_postprocess_is_about_one_round_and_its_noise() -> None:
    world = attacked_world(small(attack=LABELS | {"rounds": [2, 3]}))
    found = audits(world)
    assert refused(found) == {"postprocess"}
    assert any("one attacked round" in condition for condition in found["paper"].conditions)
    assert "set threat.rounds to one round, or use the certificate 'tail'" in found["postprocess"].refusal
    silent = attacked_world(small(server=SERVER | {"noise_std": [0.1, 0.0, 0.1, 0.1]}))
    found = audits(silent)
    assert refused(found) == {"postprocess", "paper"}
    assert "noise in the attacked round: found 0, needs above 0" in found["postprocess"].refusal


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


def test_rounds_that_do_not_exist_are_refused() -> None:
    world = attacked_world(small())
    found = audits(world, world.threat().model_copy(update={"rounds": (9,)}))
    assert refused(found) == SOUND | {"paper"}


def test_noise_cannot_be_drawn_again_where_the_model_was_not_kept() -> None:
    world = attacked_world(small())
    ledger = replace(world.ledger, facts=world.ledger.facts.model_copy(update={"resampled": (3,)}))
    found = {name: certification.audit(one, ledger, world.threat()) for name, one in CERTIFICATES.items()}
    assert refused(found) == {"tail", "postprocess"}
    assert "model before noise was kept: found kept are rounds 3, needs round 2" in found["tail"].refusal


def test_a_map_without_a_constant_refuses_the_feature_level_alone() -> None:
    found = audits(attacked_world(small(model={"type": "softmax", "features": {"type": "unit-sphere"}})))
    assert not refused(found)
    for name in SOUND | {"paper"}:
        assert set(found[name].refusals) == {f"{found[name].certificate} (feature level)"}
        assert not found[name].refusal_at("sample")


def test_a_level_that_nobody_asks_for_is_not_audited() -> None:
    world = attacked_world(small(model={"type": "softmax", "features": "unit-sphere"}))
    whole, clients = (
        certification.audit(PathwiseLinear(levels=levels), world.ledger, world.threat())
        for levels in (None, ("client",))
    )
    assert "feature maps are Lipschitz" in {check.name for check in whole.checks if check.status == "failed"}
    assert {check.level for check in clients.checks} <= {None, "client"}
    assert "failed" not in {check.status for check in clients.checks if check.direction is None}
    assert clients.directions_at("client") == whole.directions_at("client")


def test_an_attack_beyond_the_threat_makes_a_what_if() -> None:
    """More attackers, another round, more poison: the numbers stand, and say that they do not cover this run."""
    world = attacked_world(small(attack=LABELS | {"clients": [0, 1], "scale": 3.0}))
    changes: tuple[tuple[dict[str, Any], str], ...] = (
        ({"clients": [0]}, "clients [1] attacked and are not among the assumed ones"),
        ({"clients": 1}, "2 clients attacked, 1 assumed"),
        ({"rounds": [1]}, "rounds [2] were attacked and are not among the assumed ones"),
        ({"scale": 2.0}, "scale 3 is above the assumed 2"),
        ({"poison_ratio": 0.1}, "poison_ratio 0.5 is above the assumed 0.1"),
        ({"poison": "features"}, "poison 'labels' is not covered by 'features'"),
    )
    for change, reason in changes:
        assert world.uncovered(ThreatSettings(**change)) == (reason,)


MANY = [{"type": "paper"}, {"type": "pathwise-linear"}, {"type": "tail", "continuations": 8, "selection": 4}]


def test_a_refused_certificate_leaves_the_run_and_the_others_alone(
    tmp_path: Path, crfl: Callable[..., CompletedProcess[str]]
) -> None:
    """The reason is in the audit, in the metrics and on the terminal; the refused one has no file of numbers."""
    config = small(
        partition={"type": "iid", "clients": 6},
        aggregation=[{"type": "rfa"}],
        votes={"models": 32},
        certificates=[*MANY, {"type": "postprocess", "continuations": 8, "selection": 4}],
    )
    result = crfl_core.run(config, out=tmp_path / "run", plugins=PLUGINS)
    assert {file.name for file in (result.path / "certificates").iterdir()} == {"paper.csv", "postprocess.csv"}
    assert set(result.metrics.refused) == {"pathwise-linear", "tail"}
    table = json.loads((result.path / "audit.json").read_text())["certificates"]
    assert [(entry["certificate"], entry["sound"]) for entry in table] == [
        ("paper", False),
        ("pathwise-linear", True),
        ("tail", True),
        ("postprocess", True),
    ]
    assert table[1]["refused"]["pathwise-linear"] == result.metrics.refused["pathwise-linear"]
    for entry in table:
        for check in entry["checks"]:
            assert {"name", "status", "measured", "required", "remedy"} <= set(check)
    paper = next(one for one in result.certified if one.certificate == "paper")
    assert any("fixed aggregation weights" in condition for condition in paper.conditional)
    brief = " ".join(crfl("show", result.path).stdout.split())
    assert "refused: pathwise-linear: aggregation weights are fixed: found round 1" in brief
    shown = " ".join(crfl("show", "--full", result.path).stdout.split())
    assert "certificate pathwise-linear refused: aggregation weights are fixed: found round 1" in shown
    for status in ("held", "failed"):
        assert status in shown
