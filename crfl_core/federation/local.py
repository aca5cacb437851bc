"""Local training of many clients at once: the inner loop of Algorithm 1, batched over clients and replicas."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crfl_core.federation import batches
from crfl_core.federation.attackers import AttackedModels, bends, poison
from crfl_core.federation.setup import Federation, settings_of
from crfl_core.kinds.model import LocalModels
from crfl_core.updates import Round, Trained


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
        order = np.argsort(clients.attacking, kind="stable")  # attackers last: they and the others are slices
        clients = clients.take(order)
        honest = len(clients) - int(clients.attacking.sum())
        plan = batches.draw(federation.data.partition, clients, round.number, round.streams)
        device, dtype = federation.device, federation.dtype
        rows = torch.from_numpy(plan.rows).to(device)
        sizes = torch.from_numpy(plan.sizes).to(device)
        labels = federation.data.y[rows]
        weights = sample_weights(sizes, rows.shape[2], dtype)
        rates = torch.from_numpy(clients.learning_rate).to(device, dtype)[:, None] * (sizes > 0)

        poisoned, poisoning = poison(federation, rows, labels, sizes, clients, round.number)
        clean = rows if poisoned is None else rows[:honest]
        steps = clean.transpose(0, 1).flatten(1).contiguous()  # (steps, clients * batch): one gather per step
        x = federation.features.new_empty(len(clients), rows.shape[2], federation.features.shape[1])
        gathered = x[: len(clean)].flatten(0, 1)
        decay = None
        if clients.weight_decay.any():
            decay = torch.from_numpy(clients.weight_decay).to(device, dtype)
        with settings_of("model", federation.config.model.configured_as):
            models = local_models(federation, start, honest, plan.sizes)
            for step in range(len(steps)):
                torch.index_select(federation.features, 0, steps[step], out=gathered)
                if poisoned is not None:
                    x[honest:] = poisoned[:, step]
                models.step(x, labels[:, step], weights[:, step], rates[:, step], decay)
            updates = models.parameters() - start[:, None, :]
        if 0 < honest < len(clients):
            back = np.argsort(order)
            updates, poisoning = updates[:, back], poisoning.take(back)
        return Trained(part, updates, poisoning)


def local_models(federation: Federation, start: Tensor, honest: int, sizes: NDArray[np.int64]) -> LocalModels:
    """The models in the layout that they like best, unless attackers, who come last, interfere with single steps."""
    attack = federation.attack
    if attack is None or honest == len(sizes) or not bends(attack):
        return federation.model.local(start, len(sizes))
    return AttackedModels(federation.model, attack, start, honest, sizes[honest:])


def sample_weights(sizes: Tensor, batch: int, dtype: torch.dtype) -> Tensor:
    """The weight of each sample in its batch's mean, (clients, steps, batch); 0 for padding."""
    real = torch.arange(batch, device=sizes.device) < sizes[..., None]
    return real.to(dtype) / sizes[..., None].clamp(min=1).to(dtype)
