"""The server's side of a round: receive, aggregate, clip, add noise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crfl_core.errors import PluginFailure, RunError
from crfl_core.federation.chain import ChainResult, States, combine, dependence
from crfl_core.federation.setup import Federation
from crfl_core.hooks import Hooks
from crfl_core.kinds.aggregator import LinearAggregator
from crfl_core.kinds.complaints import settings_of
from crfl_core.streams import Streams
from crfl_core.updates import ClientUpdates, LocalUpdates, Poisoning, Round, RuleResult

RECONSTRUCTION = 1e-4
"""How far replaced weights may miss the aggregate, relative to the largest update: float32 sums of many clients."""


@dataclass(frozen=True)
class Received:
    """What arrived at the server: `updates` (n, P), which rows were bad (now zero), and the measured poison."""

    updates: Tensor
    norms: Tensor
    bad: NDArray[np.bool_]
    poisoning: Poisoning
    scale: NDArray[np.float64]


@dataclass(frozen=True)
class Aggregated:
    """The chain's result with one weight per participant, and who reported the weights."""

    combined: ChainResult
    weights: Tensor
    weights_from: str


def collect(parts: Iterator[LocalUpdates], current: Round, parameters: int) -> tuple[Tensor, Poisoning]:
    """The parts of a round put together, in any order; a part of the wrong shape counts as non-finite."""
    clients = len(current.clients)
    updates = current.start.new_full((clients, parameters), torch.nan)
    columns = {name: column.copy() for name, column in vars(Poisoning.none(clients)).items()}
    seen = np.zeros(clients, np.int64)
    for trained in parts:
        seen[trained.part] += 1
        rows = updates[trained.part]
        if trained.updates.shape == (1, *rows.shape):
            rows.copy_(trained.updates[0])
        for name, column in columns.items():
            column[trained.part] = getattr(trained.poisoning, name)
    if (seen != 1).any():
        missing = current.clients.ids[np.flatnonzero(seen != 1)[0]]
        raise PluginFailure(f"the engine must train every participant once: client {missing} in round {current.number}")
    return updates, Poisoning(**columns)


def receive(federation: Federation, current: Round, trained: Tensor, poisoning: Poisoning) -> Received:
    """What is submitted: honest updates as trained, malicious ones as crafted, bad ones replaced by zero."""
    trained_norms = torch.linalg.vector_norm(trained, dim=1)
    submitted, attackers = trained, np.flatnonzero(current.clients.attacking)
    if len(attackers) and federation.attack is not None:
        submitted = craft(federation, current, trained, attackers)
    norms = torch.linalg.vector_norm(submitted, dim=1)
    bad = ~torch.isfinite(norms)
    if bad.any():
        submitted = torch.where(bad[:, None], 0.0, submitted)
    scale = np.ones(len(norms))
    ratio = norms / trained_norms.clamp(min=torch.finfo(norms.dtype).tiny)
    ratio = torch.where(bad, 0.0, ratio).double().cpu().numpy()  # a bad update counts as zero, here as well
    scale[attackers] = ratio[attackers]
    return Received(submitted, norms, bad.cpu().numpy(), poisoning, scale)


def craft(federation: Federation, current: Round, trained: Tensor, attackers: NDArray[np.int64]) -> Tensor:
    """All updates with those of the attackers replaced by what they craft from everything they know."""
    attack = federation.attack
    assert attack is not None
    honest = np.flatnonzero(~current.clients.attacking)
    seen = ClientUpdates(trained[honest], replace(current, clients=current.clients.take(honest)))
    own = trained[attackers]
    with settings_of("attack", attack):
        crafted = attack.craft(seen, own, nominal_weights(federation, current)[attackers])
    if crafted.shape != own.shape:
        raise PluginFailure(
            f"attack {attack.full_name}: craft() must return {tuple(own.shape)}, found {tuple(crafted.shape)}"
        )
    submitted = trained.clone()
    submitted[attackers] = crafted
    return submitted


def nominal_weights(federation: Federation, current: Round) -> Tensor:
    """The weights that attackers expect: those of a linear rule, else by sample counts."""
    rule = federation.config.aggregation[-1]
    if isinstance(rule, LinearAggregator):
        return rule.weights(current.clients)
    samples = torch.from_numpy(current.clients.samples).double()
    return samples / samples.sum()


def aggregate(federation: Federation, current: Round, received: Received, states: States, hooks: Hooks) -> Aggregated:
    """Run the chain on what was received, and settle the effective weights.

    A zeroed row keeps its weight where weights are fixed or a client's own. Rules that look at all updates never see
    it; nor does any rule if the config says "drop".
    """
    steps = federation.config.aggregation
    dropping = federation.config.server.bad_update == "drop"
    hide = bool(received.bad.any()) and (dropping or dependence(steps) == "all")
    rows = np.flatnonzero(~received.bad) if hide else np.arange(len(received.bad))
    if len(rows) == 0 or received.bad.all():
        raise RunError(
            f"round {current.number}: no usable update is left, all {len(received.bad)} are non-finite or of the wrong "
            "shape: lower training.learning_rate"
        )
    values = received.updates[torch.from_numpy(rows)] if hide else received.updates
    updates = ClientUpdates(values, replace(current, clients=current.clients.take(rows)) if hide else current)
    combined = combine(steps, updates, states)
    if hide and dropping:
        combined = replace(combined, depends="all")
    weights, weights_from = combined.aggregate.weights, "chain"
    if (answer := hooks.effective_weights(updates, combined.aggregate)) is not None:
        weights, weights_from = answer
        check_reconstruction(values, weights, combined.aggregate, weights_from)
        combined = replace(combined, depends="all", weight_bound=weights)
    if hide:
        spread = (rows, len(received.bad))
        weights = scatter(weights, *spread)
        combined = replace(
            combined, weight_bound=scatter(combined.weight_bound, *spread), cap=scatter(combined.cap, *spread)
        )
    return Aggregated(combined, weights, weights_from)


def scatter(values: Tensor, rows: NDArray[np.int64], total: int) -> Tensor:
    """Values of some participants as values of all, 0 for the others."""
    result = values.new_zeros(total)
    result[torch.from_numpy(rows)] = values
    return result


def check_reconstruction(values: Tensor, weights: Tensor, aggregate: RuleResult, who: str) -> None:
    """Weights that a plugin puts in place of the reported ones must give the same aggregate."""
    if not isinstance(weights, Tensor) or weights.shape != aggregate.weights.shape:
        raise PluginFailure(f"{who}: crfl_effective_weights must return a tensor of {len(values)} weights")
    rebuilt = weights.to(values) @ values
    if aggregate.offset is not None:
        rebuilt = rebuilt + aggregate.offset
    gap = float(torch.linalg.vector_norm(rebuilt - aggregate.update))
    scale = float(torch.linalg.vector_norm(values, dim=1).max())
    if not gap <= RECONSTRUCTION * max(scale, torch.finfo(values.dtype).tiny):
        raise PluginFailure(
            f"{who}: crfl_effective_weights does not reconstruct the aggregate: sum_i p_i u_i + offset misses it by "
            f"{gap:g}, with updates of norm up to {scale:g}"
        )


def clip(parameters: Tensor, norm: float) -> Tensor:
    """`Clip_rho(w) = w / max(1, ||w|| / rho)`: the projection of the whole vector on a ball."""
    return parameters / max(1.0, float(torch.linalg.vector_norm(parameters)) / norm)


def add_noise(parameters: Tensor, std: float, streams: Streams, number: int, replica: int = 0) -> Tensor:
    """`w + N(0, std^2 I)` on every parameter."""
    if std == 0:
        return parameters
    generator = streams.generator("noise", round_number=number, replica=replica)
    dtype = np.float64 if parameters.dtype == torch.float64 else np.float32
    noise = torch.from_numpy(generator.standard_normal(parameters.shape, dtype=dtype))
    return parameters + std * noise.to(parameters.device)
