"""Scenes for checks of attacks: a federation, an attacked round, the attackers' batches before and after."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from crfl_core.config import load_config
from crfl_core.errors import ConfigError
from crfl_core.plugin_api.attack import Attack, RealisedAttack
from crfl_core.records.inputs import Batches
from crfl_core.records.round import LocalUpdates, State, TrainingTask
from crfl_core.records.schedules import RoundRange
from crfl_core.testing.sample_run import SPOTS, registry_with, small_config
from crfl_core.testing.suite import Case, Skipped
from crfl_core.training import local_training, rounds
from crfl_core.training.attackers import attack_state_of
from crfl_core.training.crafting import Crafting, observe_round
from crfl_core.training.federation import Federation, build
from crfl_core.training.local_training import LocalTraining
from crfl_core.training.session import RoundPlan, Session
from crfl_core.training.submissions import Submissions, nominal_weights

if TYPE_CHECKING:
    from crfl_core.records.attacker_view import AttackerObservation, AttackerView

CLIENTS = 20


class Scene(NamedTuple):
    """Federation with the attack and its first attacked round: the attackers' batches before and after."""

    federation: Federation
    plan: RoundPlan
    clean: Batches
    dirty: Batches

    @property
    def real(self) -> Tensor:
        """Return which rows of the batches are samples, not padding.

        The mask is (attackers, steps, batch).
        """
        return torch.arange(self.clean.x.shape[2]) < self.clean.sizes[..., None]


def federation_with(attack: Attack, *, tabular: bool) -> Federation:
    """Build a federation of twenty clients.

    It has as many rounds as the attack's schedule needs.
    """
    registry = registry_with({attack.configured_as: type(attack)})
    return build(load_config(attack_config(attack, tabular=tabular), registry=registry).config)


def attack_config(attack: Attack, *, tabular: bool) -> dict[str, Any]:
    """Return the config of that federation."""
    first = attack.rounds.first if isinstance(attack.rounds, RoundRange) else max(attack.rounds, default=1)
    return small_config(
        rounds=first + 2,
        dataset={"type": SPOTS, "scaling": "none", "tabular": tabular},
        partition={"type": "iid", "clients": CLIENTS},
        attack=attack.with_name(attack.configured_as),
    )


def start_of(federation: Federation) -> Tensor:
    """Return the initial model, moved a little.

    Its gradients are then not those of zero.
    """
    return rounds.initial_progress(federation)[0].models[0] + 0.01


def plan_of(federation: Federation, number: int, *, attacked: bool = True) -> RoundPlan:
    """Plan a round of the federation."""
    (plan,) = Session.of(federation, Path()).plan_round(number, is_run=attacked)
    return plan


def scene_of(federation: Federation, attack: Attack, number: int | None = None, state: State | None = None) -> Scene:
    """Set up an attacked round with some short batches.

    The attack has the given state.
    """
    plan = plan_of(federation, number or federation.participation.attack_rounds[0])
    attackers = plan.clients.take(plan.behaviour.attacking)
    steps = plan.behaviour.steps[plan.behaviour.attacking]
    drawn = local_training.draw_batches(federation.data.partition, attackers, steps, plan.number, federation.streams)
    rows = torch.from_numpy(drawn.rows)
    clean = Batches(
        federation.data.x_of(rows), federation.data.y[rows], torch.from_numpy(drawn.sizes), attackers.ids, plan.number
    )
    return Scene(federation, plan, clean, attack.poison(copy_tensors(clean), attack_state_of(federation, state)))


def all_scenes(case: Case[Attack]) -> dict[str, Scene | str]:
    """Return a scene for images and one for tabular data.

    A text says why the attack refuses such data.
    """
    found: dict[str, Scene | str] = {}
    for name, tabular in (("images", False), ("tabular data", True)):
        try:
            found[name] = scene_of(federation_with(case.plugin, tabular=tabular), case.plugin)
        except ConfigError as refusal:
            found[name] = str(refusal)
    return found


def scenes(case: Case[Attack]) -> Iterator[tuple[str, Scene]]:
    """Return the scenes of data that the attack accepts."""
    found = case.once(all_scenes)
    accepted = [(name, scene) for name, scene in found.items() if isinstance(scene, Scene)]
    if not accepted:
        raise Skipped("; ".join(f"it refuses {name}: {why}" for name, why in found.items()))
    return iter(accepted)


def measure_attack(scene: Scene) -> RealisedAttack:
    """Measure the attackers in the round of a scene.

    Their batches and updates are measured.
    """
    real = scene.real
    sizes = scene.clean.sizes
    delta = (scene.dirty.x - scene.clean.x).double().norm(dim=-1) * real
    flips = (scene.dirty.y != scene.clean.y) & real
    share = ((delta > 0) | flips).sum(-1).double() / sizes.clamp(min=1)
    behaviour = scene.plan.behaviour
    clients = scene.plan.clients.take(behaviour.attacking)
    steps = behaviour.steps[behaviour.attacking]
    (received,) = submissions(scene.federation, scene.plan).receive(train(scene.federation, scene.plan))
    return RealisedAttack(
        round=np.full(len(clients), scene.plan.number),
        client=clients.ids,
        poison_ratio=share.sum(-1).numpy() / np.maximum(1, steps),
        delta=delta.flatten(1).amax(-1).numpy(),
        flips=flips.flatten(1).sum(-1).numpy(),
        scale=received.scale[behaviour.attacking],
    )


def train(federation: Federation, plan: RoundPlan) -> LocalUpdates:
    """Train all clients of a round."""
    task = TrainingTask(plan.number, start_of(federation)[None, None], plan.clients, plan.is_run)
    return LocalTraining(federation).train(task, slice(0, len(plan.clients)))


def submissions(federation: Federation, plan: RoundPlan) -> Submissions:
    """Return the submissions of a round from the initial model.

    Its attackers have no memory.
    """
    return Submissions(federation, plan, start_of(federation), {}, None)


def attacker_view(attack: Attack, scene: Scene) -> AttackerView:
    """Return what attackers see when they craft."""
    updates = train(scene.federation, scene.plan).updates[0]
    attacking = scene.plan.behaviour.attacking
    all_clients = slice(0, len(attacking))
    attackers = np.flatnonzero(attacking)
    weights = nominal_weights(scene.plan)[all_clients][attackers]
    crafting = Crafting(scene.federation, scene.plan, start_of(scene.federation), {}, None)
    return crafting.view(attack, all_clients, updates, attackers, weights)


def attacker_observation(attack: Attack, scene: Scene) -> AttackerObservation:
    """Return what attackers observe after the round of a scene.

    The model moves a little in that round.
    """
    start = start_of(scene.federation)
    crafted = attack.craft(attacker_view(attack, scene), scene.federation.prepared)
    following = start - 0.01 * torch.arange(1.0, 1.0 + len(start)).to(start) / len(start)
    return observe_round(scene.federation, scene.plan, start, following, crafted)


def select_batches(batches: Batches, rows: slice) -> Batches:
    """Return the batches of some clients."""
    return Batches(
        batches.x[rows].clone(), batches.y[rows].clone(), batches.sizes[rows], batches.clients[rows], batches.round
    )


def copy_tensors(value: Any) -> Any:
    """Copy batches, tensors or a mapping of tensors."""
    if isinstance(value, Batches):
        return replace(value, x=value.x.clone(), y=value.y.clone(), sizes=value.sizes.clone())
    return {key: item.clone() for key, item in value.items()} if isinstance(value, dict) else value.clone()
