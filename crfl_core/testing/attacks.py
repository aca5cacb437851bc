"""Checks of attacks: what they change, within the domain and within their threat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from crfl_core.plugin_api.attack import FREE_METHODS, Attack, RealisedAttack
from crfl_core.records.random_streams import Streams
from crfl_core.records.threat import SCALE_TOLERANCE, Poison, covers
from crfl_core.testing.sample_attacks import (
    CLIENTS,
    Scene,
    attacker_observation,
    attacker_view,
    copy_tensors,
    measure_attack,
    plan_of,
    scene_of,
    scenes,
    select_batches,
    train,
)
from crfl_core.testing.suite import Case, CheckFailed, Skipped, check_for, difference, usage_of

if TYPE_CHECKING:
    from crfl_core.records.inputs import Batches


@usage_of(Attack)
def use_attack(attack: Attack, _: Case[Attack]) -> dict[str, object]:
    """Run the attack's preparation, poisoning and trigger."""
    found: dict[str, object] = {}
    for name, scene in scenes(Case(attack)):
        data = scene.federation.data
        prepared = scene.federation.prepared
        found[name] = (dict(prepared), scene.dirty, attack.backdoor_test_set(data, prepared))
    return found


@check_for(Attack)
def check_batches_keep_their_shape(case: Case[Attack]) -> None:
    """Poisoned batches have the shape and type of clean ones, for the same clients and round."""
    for name, scene in scenes(case):
        clean = batch_shapes(scene.clean)
        dirty = batch_shapes(scene.dirty)
        if clean != dirty:
            raise CheckFailed(f"batches of {name} with {clean}", f"{dirty}", "change entries of x and y, nothing else")


@check_for(Attack)
def check_keeps_inputs(case: Case[Attack]) -> None:
    """Clean batches, prepared tensors, trained updates and test inputs are as they were before."""
    for name, scene in scenes(case):
        data = scene.federation.data
        prepared = scene.federation.prepared
        before = {"clean": scene.clean, "prepared": dict(prepared), "test_x": data.test_x, "test_y": data.test_y}
        given = {key: copy_tensors(value) for key, value in before.items()}
        case.plugin.poison(given["clean"], given["prepared"])
        case.plugin.backdoor_test_set(replace(data, test_x=given["test_x"], test_y=given["test_y"]), given["prepared"])
        known = attacker_view(case.plugin, scene)
        seen = attacker_observation(case.plugin, scene)
        shown = {"honest": known.honest.values, "own": known.own_updates, "following": seen.following}
        updates = copy_tensors(shown)
        case.plugin.craft(known, given["prepared"])
        case.plugin.learn(seen, given["prepared"])
        if found := difference(before | updates, given | shown, "the input"):
            raise CheckFailed(f"unchanged inputs ({name})", found, "return new tensors: x = batches.x.clone()")


@check_for(Attack)
def check_labels_stay_in_range(case: Case[Attack]) -> None:
    """Poisoned labels are those of classes that exist."""
    for name, scene in scenes(case):
        classes = scene.federation.data.facts.classes
        labels = scene.dirty.y[scene.real]
        if len(labels) and not bool(((labels >= 0) & (labels < classes)).all()):
            raise CheckFailed(
                f"labels 0..{classes - 1} for {name}",
                f"{int(labels.min())} to {int(labels.max())}",
                "raise OptionError('target', ...) from prepare() for a class that does not exist",
            )


@check_for(Attack)
def check_inputs_stay_in_the_domain(case: Case[Attack]) -> None:
    """Poisoned and backdoored inputs are finite and within the domain of the data."""
    for name, scene in scenes(case):
        data = scene.federation.data
        low = data.facts.domain.low
        high = data.facts.domain.high
        backdoored = case.plugin.backdoor_test_set(data, scene.federation.prepared)
        for what, x in (
            ("poisoned", scene.dirty.x[scene.real]),
            ("backdoored", data.test_x[:0] if backdoored is None else backdoored[0]),
        ):
            slack = SCALE_TOLERANCE * max(1.0, abs(low), abs(high))
            if not bool(((x >= low - slack) & (x <= high + slack)).all()):
                raise CheckFailed(
                    f"{what} {name} within [{low:g}, {high:g}]",
                    f"[{float(x.min()):g}, {float(x.max()):g}]",
                    "clamp to `data.facts.domain`: x.clamp(low, high)",
                )


@check_for(Attack)
def check_padding_does_not_matter(case: Case[Attack]) -> None:
    """What becomes of a sample does not depend on the rows that only fill a short batch; these stay finite."""
    for name, scene in scenes(case):
        other = copy_tensors(scene.clean)
        other.x[~scene.real] = 0.123
        other.y[~scene.real] = 1
        dirty = case.plugin.poison(other, scene.federation.prepared)
        same = torch.equal(dirty.x[scene.real], scene.dirty.x[scene.real])
        if not same or not torch.equal(dirty.y[scene.real], scene.dirty.y[scene.real]):
            raise CheckFailed(
                f"the same poison whatever the padding is ({name})",
                "another",
                "choose among the first `sizes[client, step]` rows of a batch only",
            )
        if not bool(torch.isfinite(dirty.x).all()):
            raise CheckFailed("finite padding", "NaN or infinity", "its weight is 0, and 0 times NaN is NaN")


@check_for(Attack)
def check_attackers_can_be_trained_apart(case: Case[Attack]) -> None:
    """An attacker's batches are poisoned alike, whichever clients are trained in the same process."""
    for name, scene in scenes(case):
        for position in range(len(scene.clean.clients)):
            rows = slice(position, position + 1)
            alone = case.plugin.poison(select_batches(scene.clean, rows), scene.federation.prepared)
            if difference(alone, select_batches(scene.dirty, rows)):
                raise CheckFailed(
                    f"the same poison for client {scene.clean.clients[position]} alone ({name})",
                    "another",
                    "draw from streams.generator('attack/...', client=...) in prepare(), or by client id",
                )


@check_for(Attack)
def check_attackers_exist(case: Case[Attack]) -> None:
    """The attackers are clients of the federation, each named once, in ascending order, the same for the same seed."""
    for _, scene in scenes(case):
        found = scene.federation.participation.attackers
        if list(found) != sorted(set(found)) or not found or not 0 <= found[0] <= found[-1] < CLIENTS:
            raise CheckFailed(f"ascending ids below {CLIENTS}", f"{found}", "do not override attackers(), or sort")
        again = case.fresh().attackers(CLIENTS, Streams(scene.federation.config.seed))
        if again != found:
            raise CheckFailed("the same attackers for the same seed", f"{found} and {again}", "draw from `streams`")


@check_for(Attack)
def check_others_and_other_rounds_are_left_alone(case: Case[Attack]) -> None:
    """Honest clients, and attackers outside their rounds, train as if there were no attack."""
    for name, scene in scenes(case):
        federation = scene.federation
        quiet = next(
            t for t in range(1, federation.config.rounds + 2) if t not in federation.participation.attack_rounds
        )
        for number in {scene.plan.number, min(quiet, federation.config.rounds)}:
            plan = plan_of(federation, number)
            with_attack = train(federation, plan)
            without = train(federation, plan_of(federation, number, attacked=False))
            others = torch.from_numpy(~plan.behaviour.attacking)
            gap = float((with_attack.updates[0, others] - without.updates[0, others]).abs().max())
            if gap > 1e-5:
                raise CheckFailed(
                    f"honest training of honest clients in round {number} ({name})",
                    f"a difference of {gap:.3g}",
                    "change only what poison(), local_gradient() and after_step() are handed",
                )


@check_for(Attack)
def check_submitted_updates_fit(case: Case[Attack]) -> None:
    """`craft` answers with one finite update for each attacker, in the precision of the others."""
    for name, scene in scenes(case):
        known = attacker_view(case.plugin, scene)
        own = known.own_updates
        crafted = case.plugin.craft(known, scene.federation.prepared)
        if crafted.shape != own.shape or crafted.dtype != own.dtype:
            raise CheckFailed(
                f"updates of shape {tuple(own.shape)} in {own.dtype}",
                f"{tuple(crafted.shape)} in {crafted.dtype}",
                "return (attackers, P), converted by .to(own)",
            )
        if not bool(torch.isfinite(crafted).all()):
            raise CheckFailed(f"finite updates ({name})", "NaN or infinity", "the server counts such updates as zero")


@check_for(Attack)
def check_memory_is_tensors_and_survives_a_resume(case: Case[Attack]) -> None:
    """`learn` answers with tensors by name, the same for the same round in a new process, which `craft` accepts."""
    for name, scene in scenes(case):
        seen = attacker_observation(case.plugin, scene)
        state = scene.federation.prepared
        learned = case.plugin.learn(seen, state)
        again = case.fresh().learn(seen, copy_tensors(dict(state)))
        if not isinstance(learned, Mapping) or not all(isinstance(value, Tensor) for value in learned.values()):
            raise CheckFailed("a mapping of tensors from learn()", f"{type(learned).__name__}", "return {name: tensor}")
        if found := difference(dict(learned), dict(again), "the state"):
            raise CheckFailed(
                f"the same state for the same round ({name})", found, "keep everything in the state: a resume is new"
            )
        stored = {key: torch.from_numpy(value.cpu().contiguous().numpy()) for key, value in learned.items()}
        later = scene_of(scene.federation, case.plugin, scene.plan.number, stored)
        crafted = case.plugin.craft(attacker_view(case.plugin, later), stored)
        if batch_shapes(later.dirty) != batch_shapes(scene.dirty) or not bool(torch.isfinite(crafted).all()):
            raise CheckFailed(
                f"a round like the first with the state that was learned ({name})",
                "other shapes, NaN or infinity",
                "return from learn() everything that the other methods look up",
            )


@check_for(Attack)
def check_backdoored_set_is_honest(case: Case[Attack]) -> None:
    """Backdoored test inputs keep their true labels, none of which is the target."""
    seen = False
    for name, scene in scenes(case):
        data = scene.federation.data
        target = case.plugin.backdoor_class
        backdoored = case.plugin.backdoor_test_set(data, scene.federation.prepared)
        if backdoored is None:
            continue
        seen, (x, y) = True, backdoored
        if x.ndim != 2 or x.shape != (len(y), data.facts.inputs) or x.dtype != data.test_x.dtype:
            raise CheckFailed(
                f"(samples, {data.facts.inputs}) inputs with a label each", f"{tuple(x.shape)}", "keep rows"
            )
        if target is not None and bool((y == target).any()):
            raise CheckFailed(
                f"no sample of the target class {target} ({name})",
                f"{int((y == target).sum())}",
                "leave them out: they would count as successes",
            )
        known, shown = (np.bincount(labels.numpy(), minlength=data.facts.classes) for labels in (data.test_y, y))
        if len(y) <= len(data.test_y) and (shown > known).any():
            label = int(np.argmax(shown > known))
            raise CheckFailed(
                f"true labels, so at most {known[label]} samples of class {label}, as in the test set ({name})",
                f"{shown[label]}",
                "return y of the samples as they were, without those of the target class",
            )
    if not seen:
        raise Skipped("it has no backdoored test set")


@check_for(Attack)
def check_threat_covers_what_was_done(case: Case[Attack]) -> None:
    """The threat that the attack states is at least what is measured: clients, rounds, q/n, delta, scale, kind."""
    for name, scene in scenes(case):
        # What an attack does may change from its first round to its last.
        for number in {scene.plan.number, scene.federation.participation.attack_rounds[-1]}:
            demand_cover(case.plugin, scene_of(scene.federation, case.plugin, number), name)


def demand_cover(attack: Attack, scene: Scene, name: str) -> None:
    """Fail unless the stated threat covers what is measured in one round."""
    realised = measure_attack(scene)
    threat = attack.threat(realised)
    done = {
        "poison_ratio": float(realised.poison_ratio.max()),
        "delta": float(realised.delta.max()),
        "scale": float(realised.scale.max()),
    }
    for key, value in done.items():
        stated = getattr(threat, key)
        if stated is not None and value > stated * (1 + SCALE_TOLERANCE) + 1e-12:
            raise CheckFailed(
                f"a stated {key} of at least {value:.6g}, as measured ({name})",
                f"{stated:.6g}",
                "take it from `realised`, or leave threat() as it is",
            )
    ids = set(realised.client.tolist())
    named = len(ids) <= threat.clients if isinstance(threat.clients, int) else ids <= set(threat.clients)
    if not named or not set(realised.round.tolist()) <= set(threat.rounds):
        raise CheckFailed(
            f"clients {sorted(ids)} and round {scene.plan.number} in the threat",
            f"{threat.clients} and {threat.rounds}",
            "state who attacked, and when",
        )
    kind = poison_kind(attack, realised)
    if not covers(threat.poison, kind):
        raise CheckFailed(
            f"a threat that covers {kind!r}",
            f"{threat.poison!r}",
            f"state what is done; attacks with their own {', '.join(FREE_METHODS)} are of kind 'update'",
        )


def poison_kind(attack: Attack, realised: RealisedAttack) -> Poison:
    """Return the kind of poison.

    It follows from measurements and from what the attack overrides.
    """
    if any(getattr(type(attack), name) is not getattr(Attack, name) for name in FREE_METHODS):
        return "update"
    if not realised.flips.any():
        return "features"
    return "features+labels" if (realised.delta > 0).any() else "labels"


def batch_shapes(batches: Batches) -> dict[str, object]:
    """Return everything about batches but their entries."""
    return {
        "x": (tuple(batches.x.shape), batches.x.dtype),
        "y": (tuple(batches.y.shape), batches.y.dtype),
        "sizes": batches.sizes.tolist(),
        "clients": batches.clients.tolist(),
        "round": batches.round,
    }
