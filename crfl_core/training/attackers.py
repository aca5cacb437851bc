"""Attackers in local training: how they change data and steps, and what is measured of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crfl_core.errors import PluginFailure
from crfl_core.plugin_api.attack import Attack
from crfl_core.plugin_api.plugin_errors import PluginMethod, errors_of
from crfl_core.plugin_loading.mutation_guard import InputsChanged, fingerprint, guard_inputs
from crfl_core.records.input_rows import BatchBuffer, scaled_norms
from crfl_core.records.inputs import Batches
from crfl_core.records.round import BatchMeasurements, State, TrainingTask
from crfl_core.training.features import check_lipschitz, map_inputs
from crfl_core.training.local_steps import ClientMemory, ProtocolSteps

if TYPE_CHECKING:
    from crfl_core.training.federation import Federation


class Poisoner:
    """Poisons the batches of attackers. What it gathers is valid until the next round."""

    def __init__(self, federation: Federation) -> None:
        self._federation = federation
        self._inputs = BatchBuffer()
        self._features = BatchBuffer()

    def poison(
        self, task: TrainingTask, rows: Tensor, labels: Tensor, sizes: Tensor, attackers: NDArray[np.int64]
    ) -> tuple[Tensor | None, BatchMeasurements]:
        """Return the attackers' features, (attackers, steps, batch, features), and what was measured.

        The features are None if the attack leaves data alone. Attackers, given by their ids, are the last of the
        clients. Their `labels` are changed in place.
        """
        federation = self._federation
        nothing = BatchMeasurements.clean(len(rows))
        attack = federation.config.attack
        first = len(rows) - len(attackers)
        if attack is None or first == len(rows) or not overrides(attack, "poison"):
            return None, nothing
        own = rows[first:]
        x = self._inputs.gather_rows(federation.data.input_rows, own)
        clean = Batches(x, labels[first:].clone(), sizes[first:], attackers, task.number)
        dirty = poison_batches(attack, clean, attack_state_of(federation, task.attack_state))
        check_labels(attack, dirty.y, federation.data.facts.classes)
        moved = find_moved_inputs(clean.x, dirty.x)
        features = self._mapped(own, clean.x, dirty.x, moved)
        labels[first:] = dirty.y
        measured = measure_poison(clean, dirty, moved, features, len(rows))
        if not np.isfinite(measured.delta).all():
            raise PluginFailure(
                f"attack {attack.full_name}: poison() made inputs that are not finite: keep to the domain"
            )
        return features, measured

    def _mapped(self, rows: Tensor, clean: Tensor, dirty: Tensor, moved: Tensor) -> Tensor:
        """Map poisoned inputs through the feature maps.

        The maps may be slow, so only inputs that were moved are mapped.
        """
        maps = self._federation.maps
        if not maps.links:
            return dirty
        found = self._features.gather_rows(self._federation.features, rows)
        features = found.flatten(0, 2)
        changed = moved.flatten().nonzero()[:, 0]
        before = pick_samples(clean, changed)
        after = pick_samples(dirty, changed)
        remapped = map_inputs(maps, after)
        check_lipschitz(maps, before, after, features.index_select(0, changed), remapped)
        features.index_copy_(0, changed, remapped)
        return found


def poison_batches(attack: Attack, clean: Batches, state: State) -> Batches:
    """Let the attack change its batches, and check the shapes."""
    who = PluginMethod("attack", attack, "poison")
    with errors_of("attack", attack), guard_inputs(who, clean, state):
        dirty = attack.poison(clean, state)
    if dirty.x.shape != clean.x.shape or dirty.y.shape != clean.y.shape:
        raise PluginFailure(
            f"attack {attack.full_name}: poison() must keep the shapes of the batches, "
            f"{tuple(clean.x.shape)} became {tuple(dirty.x.shape)}"
        )
    return dirty


def check_labels(attack: Attack, labels: Tensor, classes: int) -> None:
    """Raise `PluginFailure` unless poisoned labels are class numbers."""
    wrong = labels[(labels < 0) | (labels >= classes)]
    if wrong.numel():
        who = PluginMethod("attack", attack, "poison")
        raise PluginFailure(f"{who} made the label {wrong[0].item():g}: labels are class numbers, 0..{classes - 1}")


def find_moved_inputs(clean: Tensor, dirty: Tensor) -> Tensor:
    """Return which samples are not what they were, (attackers, steps, batch)."""
    if clean.device.type == "cpu":  # where NumPy compares several times faster
        return torch.from_numpy((clean.numpy() != dirty.numpy()).any(-1))
    return (clean != dirty).any(-1)


def measure_poison(clean: Batches, dirty: Batches, moved: Tensor, features: Tensor, clients: int) -> BatchMeasurements:
    """Measure what the poison really changed, padding left out.

    `features` are the poisoned inputs behind the maps.
    """
    real = torch.arange(clean.x.shape[2], device=clean.sizes.device) < clean.sizes[..., None]
    moved = moved & real
    flips = (dirty.y != clean.y) & real
    changed = moved | flips
    where = changed.flatten().nonzero()[:, 0]
    delta = clean.x.new_zeros(changed.numel())
    norm = clean.x.new_zeros(changed.numel())
    delta[where] = scaled_norms(pick_samples(dirty.x, where) - pick_samples(clean.x, where))
    norm[where] = scaled_norms(pick_samples(features, where))
    count = changed.sum(-1)
    measured = {
        "poisoned_share": torch.from_numpy(sum_poisoned_shares(count.cpu().numpy(), clean.sizes.cpu().numpy())),
        "poisoned_samples": count.sum(-1),
        "poisoned_most": count.amax(-1),
        "delta": delta.view(len(count), -1).amax(-1),
        "label_flips": flips.flatten(1).sum(-1),
        "poisoned_norm": norm.view(len(count), -1).amax(-1),
    }
    measurements = BatchMeasurements.writable(clients)
    for name, values in measured.items():
        getattr(measurements, name)[-len(values) :] = values.cpu().numpy()
    return measurements


def sum_poisoned_shares(count: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return each attacker's sum over steps of poisoned samples / batch size.

    The sum has one quotient of counts per batch size.
    """
    each = [np.where(sizes == size, count, 0).sum(-1) / size for size in np.unique(sizes[sizes > 0])]
    total: NDArray[np.float64] = np.sum(each, axis=0, dtype=np.float64)
    return total


def pick_samples(batches: Tensor, where: Tensor) -> Tensor:
    """Return some samples of (attackers, steps, batch, features).

    `where` has their places in the order of all.
    """
    return batches.flatten(0, 2).index_select(0, where)


def overrides(attack: Attack, name: str) -> bool:
    """Ask whether an attack has a method of its own.

    The method of `Attack` itself is neutral.
    """
    return getattr(type(attack), name) is not getattr(Attack, name)


def crafts_from_others(attack: Attack | None) -> bool:
    """Ask whether attackers craft their updates from those of other participants."""
    return attack is not None and overrides(attack, "craft") and attack.knowledge != "own"


def interferes_with_steps(attack: Attack) -> bool:
    """Ask whether an attack interferes with single steps of local training."""
    return overrides(attack, "local_gradient") or overrides(attack, "after_step")


def attack_state_of(federation: Federation, learned: State | None) -> State:
    """Return what attackers remember in a round.

    This is what they learned, or what they prepared if they never learn.
    """
    return federation.prepared if learned is None else learned


class AttackedSteps(ProtocolSteps):
    """Steps of attackers, who change their gradients or project their models; `sizes` are those of their batches."""

    def __init__(  # noqa: PLR0913 - what the steps of honest clients take, and what attackers know
        self,
        federation: Federation,
        attack: Attack,
        state: State,
        start: Tensor,
        memory: ClientMemory,
        sizes: NDArray[np.int64],
        origin: Tensor | None = None,
    ) -> None:
        super().__init__(federation, start, memory, origin)
        # Attackers see a copy: whatever they do to it, the others start from theirs.
        self._attack = attack
        self._given = start
        self._start = start.clone()
        self._remembered = state
        self._marks = state_marks(state)
        self._bends = overrides(attack, "local_gradient")
        self._projects = overrides(attack, "after_step")
        self._acting = iter([acting_rows(column > 0) for column in sizes.T])
        self._now: slice | Tensor | None = None

    def adjust_gradient(self, gradient: Tensor, parameters: Tensor) -> Tensor:
        """Let attackers that still make steps change the gradient that they follow."""
        self._now = now = next(self._acting)  # some may be done before the others
        if now is not None and self._bends:
            with errors_of("attack", self._attack):
                start = self._start[:, now]
                own = self._attack.local_gradient(gradient[:, now], parameters[:, now], start, self._remembered)
            gradient[:, now] = own
        return super().adjust_gradient(gradient, parameters)

    def project(self, parameters: Tensor) -> None:
        """Let attackers change the model at the end of their step."""
        now = self._now
        if now is not None and self._projects:
            with errors_of("attack", self._attack):
                parameters[:, now] = self._attack.after_step(parameters[:, now], self._start[:, now], self._remembered)

    def parameters(self) -> Tensor:
        """Return the models as they are now, (R, n, P)."""
        if not torch.equal(self._start, self._given) or state_marks(self._remembered) != self._marks:
            who = PluginMethod("attack", self._attack, "after_step" if self._projects else "local_gradient")
            raise InputsChanged(f"{who} changed what it was given: work on a copy")
        return super().parameters()


def state_marks(state: State) -> list[bytes]:
    """Return marks that change with any tensor of a state."""
    return [fingerprint(tensor).tobytes() for tensor in state.values()]


def acting_rows(mask: NDArray[np.bool_]) -> slice | Tensor | None:
    """Return an index of the clients that make a step.

    If all do, it is a slice, which copies nothing. None if none does.
    """
    if mask.all():
        return slice(None)
    return torch.from_numpy(np.flatnonzero(mask)) if mask.any() else None
