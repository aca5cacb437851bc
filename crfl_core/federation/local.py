"""Local training of many clients at once: the inner loop of Algorithm 1, batched over clients and replicas."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crfl_core.data import Batches
from crfl_core.errors import PluginFailure
from crfl_core.federation import batches
from crfl_core.federation.setup import Federation, settings_of
from crfl_core.kinds.attack import Attack
from crfl_core.kinds.model import GradientSteps, LocalModels
from crfl_core.updates import Clients, Poisoning, Round, Trained


class LocalTraining:
    """The `Job` that engines run. Everything it needs is rebuilt from `specification` in another process."""

    def __init__(self, federation: Federation) -> None:
        self._federation = federation

    @property
    def specification(self) -> str:
        """The config as TOML."""
        return self._federation.specification

    def train(self, start: Tensor, round: Round, part: slice) -> Trained:
        """`w_s <- w_{s-1} - eta (g(w_{s-1}) + lambda w_{s-1})` for every client of `part` and replica of `start`."""
        federation = self._federation
        clients = round.clients.take(part)
        plan = batches.draw(federation.data.partition, clients, round.number, round.streams)
        device, dtype = federation.device, federation.dtype
        rows = torch.from_numpy(plan.rows).to(device)
        sizes = torch.from_numpy(plan.sizes).to(device)
        labels = federation.data.y[rows]
        weights = sample_weights(sizes, rows.shape[2], dtype)
        rates = torch.from_numpy(clients.learning_rate).to(device, dtype)[:, None] * (sizes > 0)

        attackers = np.flatnonzero(clients.attacking)
        poisoning = Poisoning.none(len(clients))
        poisoned: Tensor | None = None
        if len(attackers):
            clean = attackers_batches(federation, rows, labels, sizes, clients, attackers, round.number)
            dirty = poisoned_batches(federation, clean)
            poisoned = federation.maps(dirty.x)
            poisoning = measure(clean, dirty, poisoned, attackers, len(clients))
            labels[attackers] = dirty.y

        steps = rows.transpose(0, 1).flatten(1).contiguous()  # (steps, clients * batch): one gather per step
        buffer = federation.features.new_empty(steps.shape[1], federation.features.shape[1])
        x = buffer.view(len(clients), rows.shape[2], -1)
        decay = None
        if clients.weight_decay.any():
            decay = torch.from_numpy(clients.weight_decay).to(device, dtype)
        with settings_of("model", federation.config.model.configured_as):
            models = local_models(federation, start, len(clients), attackers, plan.sizes)
            for step in range(len(steps)):
                torch.index_select(federation.features, 0, steps[step], out=buffer)
                if poisoned is not None:
                    x[attackers] = poisoned[:, step]
                models.step(x, labels[:, step], weights[:, step], rates[:, step], decay)
            updates = models.parameters() - start[:, None, :]
        return Trained(part, updates, poisoning)


def local_models(
    federation: Federation, start: Tensor, clients: int, attackers: NDArray[np.int64], sizes: NDArray[np.int64]
) -> LocalModels:
    """The models in the layout that they like best, unless attackers interfere with single steps."""
    attack = federation.attack
    if attack is None or not len(attackers):
        return federation.model.local(start, clients)
    bends = type(attack).local_gradient is not Attack.local_gradient
    if not bends and type(attack).after_step is Attack.after_step:
        return federation.model.local(start, clients)
    return AttackedSteps(federation, attack, start, attackers, sizes)


class AttackedSteps(GradientSteps):
    """Local training in which attackers bend their gradients or project their models."""

    def __init__(
        self,
        federation: Federation,
        attack: Attack,
        start: Tensor,
        attackers: NDArray[np.int64],
        sizes: NDArray[np.int64],
    ) -> None:
        super().__init__(federation.model, start, len(sizes))
        self._attack, self._start = attack, start[:, None, :]
        self._acting = iter(attackers[sizes[attackers, step] > 0] for step in range(sizes.shape[1]))
        self._now = attackers[:0]

    def bend(self, gradient: Tensor, parameters: Tensor) -> Tensor:
        """What attackers that still make steps follow."""
        self._now = next(self._acting)  # some may be done before the others
        if len(self._now):
            with settings_of("attack", self._attack.configured_as):
                own = self._attack.local_gradient(gradient[:, self._now], parameters[:, self._now], self._start)
            gradient[:, self._now] = own
        return gradient

    def project(self, parameters: Tensor) -> None:
        """Where their step ends."""
        if len(self._now):
            with settings_of("attack", self._attack.configured_as):
                parameters[:, self._now] = self._attack.after_step(parameters[:, self._now], self._start)


def sample_weights(sizes: Tensor, batch: int, dtype: torch.dtype) -> Tensor:
    """The weight of each sample in its batch's mean, (clients, steps, batch); 0 for padding."""
    real = torch.arange(batch, device=sizes.device) < sizes[..., None]
    return real.to(dtype) / sizes[..., None].clamp(min=1).to(dtype)


def attackers_batches(
    federation: Federation,
    rows: Tensor,
    labels: Tensor,
    sizes: Tensor,
    clients: Clients,
    attackers: NDArray[np.int64],
    round: int,
) -> Batches:
    """All batches of the attackers as they would be without an attack."""
    return Batches(
        x=federation.data.x[rows[attackers]],
        y=labels[attackers],
        sizes=sizes[attackers],
        clients=clients.ids[attackers],
        round=round,
    )


def poisoned_batches(federation: Federation, clean: Batches) -> Batches:
    """What the attack makes of them, checked."""
    assert federation.attack is not None
    with settings_of("attack", federation.attack.configured_as):
        dirty = federation.attack.poison(clean, federation.prepared)
    if dirty.x.shape != clean.x.shape or dirty.y.shape != clean.y.shape:
        raise PluginFailure(
            f"attack {federation.attack.configured_as!r}: poison() must keep the shapes of the batches, "
            f"{tuple(clean.x.shape)} became {tuple(dirty.x.shape)}"
        )
    return dirty


def measure(clean: Batches, dirty: Batches, features: Tensor, attackers: NDArray[np.int64], clients: int) -> Poisoning:
    """What the poison really changed, padding left out; `features` are the poisoned inputs behind the maps."""
    real = torch.arange(clean.x.shape[2], device=clean.sizes.device) < clean.sizes[..., None]
    delta = (dirty.x - clean.x).norm(dim=-1) * real
    flips = (dirty.y != clean.y) & real
    changed = (delta > 0) | flips
    count = changed.sum(-1)
    measured = {
        "share": (count / clean.sizes.clamp(min=1)).sum(-1),
        "samples": count.sum(-1),
        "most": count.amax(-1),
        "delta": delta.flatten(1).amax(-1),
        "flips": flips.flatten(1).sum(-1),
        "norm": (features.norm(dim=-1) * changed).flatten(1).amax(-1),
    }
    result = Poisoning.none(clients)
    columns = {name: column.copy() for name, column in vars(result).items()}
    for name, values in measured.items():
        columns[name][attackers] = values.cpu().numpy()
    return Poisoning(**columns)
