"""Rounds for checks of aggregation: ordinary, hostile, smallest and largest, with a server."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crfl_core.errors import OptionError
from crfl_core.plugin_api.aggregator import AggregationStep, Aggregator, Stage
from crfl_core.plugin_api.model import BoundModel
from crfl_core.plugin_api.server_view import RootSamples, ServerView
from crfl_core.records.ledger import ModelFacts
from crfl_core.records.random_streams import Streams
from crfl_core.records.round import Clients, ClientUpdates, Layout, Round, RuleResult, State
from crfl_core.testing.suite import Case, Skipped
from crfl_core.training import aggregator_contract as core
from crfl_core.training.aggregation_chain import AppliedStage, apply_stage

SIZES = (12, 25, 60, 120)
"""Numbers of clients that are tried until one fits the options."""

FEDERATION = 2 * max(SIZES) + 1
"""All clients, of which every second one takes part at most."""
WEIGHT_TOLERANCE = 1e-6
"""Absolute error that weights, their sums and identities of weights may have."""

UPDATE_BOUND = 4.0
"""What honest updates of the situations are said to reach at most."""

STREAMS = Streams(5).only("aggregation")
"""What an aggregation may draw from."""

HUGE = 1e18
"""An update that the server still takes for finite: its squares fit into single precision."""


def clients_of(count: int, **columns: Any) -> Clients:
    """Return clients of 10, 11, and more samples.

    Ids have gaps, as when only some clients take part.
    """
    ones = np.ones(count, np.int64)
    facts = {
        "ids": 2 * np.arange(count) + 1,
        "samples": np.arange(10, 10 + count),
        "learning_rate": np.full(count, 0.1),
        "steps": ones,
        "batch_size": ones,
        "last_batch": ones,
        "weight_decay": np.zeros(count),
        "retention": np.ones(count),
        "update_bound": np.full(count, UPDATE_BOUND),
        "group": np.zeros(count, np.int64),
    }
    return Clients(**(facts | columns))


ALL_CLIENTS = clients_of(FEDERATION, ids=np.arange(FEDERATION))
"""All clients of the federation that rounds are drawn from."""


def round_of(values: NDArray[np.float64] | Tensor, *, number: int = 1, **columns: Any) -> ClientUpdates:
    """Return updates as those of a round.

    The broadcast model is not zero.
    """
    submitted = torch.as_tensor(values)
    clients, size = submitted.shape
    start = torch.linspace(-1.0, 1.0, size, dtype=submitted.dtype, device=submitted.device)
    layout = Layout((("weight", (size,)),))
    server = server_of(size, ALL_CLIENTS, STREAMS)
    return ClientUpdates(submitted, Round(number, 9, clients_of(clients, **columns), layout, STREAMS, start, server))


def gaussian(clients: int, size: int, seed: int = 0) -> NDArray[np.float64]:
    """Draw independent standard normal updates."""
    return np.random.default_rng(seed).standard_normal((clients, size))


def round_size(case: Case[AggregationStep]) -> int:
    """Return the size of the smallest round that the step's options fit."""
    for count in SIZES:
        if accepts(case.plugin, clients_of(count)):
            return count
    raise Skipped(
        f"its options fit no round of {', '.join(map(str, SIZES))} clients: check an instance that is made for one"
    )


def accepts(step: AggregationStep, clients: Clients) -> bool:
    """Return whether the options fit a round.

    An `OptionError` before training also counts as an answer.
    """
    try:
        step.check(clients)
    except OptionError:
        return False
    return True


def situations(case: Case[AggregationStep]) -> dict[str, ClientUpdates]:
    """Return rounds by name that the step's options fit, in double precision."""
    count = case.once(round_size)
    ordinary = gaussian(count, 6)
    outlier = ordinary.copy()
    spotted = ordinary.copy()
    outlier[0] *= 1e6
    spotted[::3] = 0.0
    integers = np.random.default_rng(1).integers(-2, 3, (count, 6)).astype(np.float64)
    decay: dict[str, Any] = {"weight_decay": np.full(count, 0.5), "retention": np.full(count, 0.9)}
    rounds = {
        "an ordinary round": round_of(ordinary),
        "a later round": round_of(gaussian(count, 6, seed=2), number=5),
        "a round with weight decay": round_of(ordinary, **decay),
        "a round with one huge update": round_of(outlier),
        "a round with ties": round_of(integers),
        "a round with zeros, as bad updates become": round_of(spotted),
        "a round of identical updates": round_of(np.tile(ordinary[:1], (count, 1))),
        "a round of zeros": round_of(np.zeros((count, 6))),
        "a single parameter": round_of(gaussian(count, 1)),
        "a single client": round_of(gaussian(1, 6)),
    }
    return {name: updates for name, updates in rounds.items() if accepts(case.plugin, updates.round.clients)}


def every_size(case: Case[AggregationStep]) -> dict[str, ClientUpdates]:
    """Return the situations, and one with many parameters.

    The latter is too slow for every check.
    """
    return case.once(situations) | {"10,000 parameters": round_of(gaussian(case.once(round_size), 10_000))}


def run_situations(case: Case[AggregationStep]) -> dict[str, tuple[ClientUpdates, RuleResult | AppliedStage]]:
    """Run the step in every situation."""
    return {name: (updates, run_step(case.plugin, updates)) for name, updates in case.once(situations).items()}


def ordinary_round(case: Case[AggregationStep], dtype: torch.dtype = torch.float64) -> ClientUpdates:
    """Return the first of the situations."""
    return cast_to(case.once(situations)["an ordinary round"], dtype)


def cast_to(updates: ClientUpdates, dtype: torch.dtype, device: str = "cpu") -> ClientUpdates:
    """Copy a round to another precision or device."""
    start = updates.round.start.to(device, dtype, copy=True)
    return ClientUpdates(updates.values.to(device, dtype, copy=True), replace(updates.round, start=start))


def select_clients(updates: ClientUpdates, rows: NDArray[np.int64]) -> ClientUpdates:
    """Return some of the clients with their updates, in the given order."""
    clients = updates.round.clients.take(rows)
    return ClientUpdates(updates.values[torch.from_numpy(rows)], replace(updates.round, clients=clients))


def prepare_state(step: AggregationStep, updates: ClientUpdates) -> State:
    """Return the state of the step before the first round.

    It is in the precision of the updates.
    """
    return core.ask_initial_state(step, updates.round.server)


def run_step(step: AggregationStep, updates: ClientUpdates, state: State | None = None) -> RuleResult | AppliedStage:
    """Run a step as the core does.

    Without a state it is the first round. Shapes are checked.
    """
    if isinstance(step, Stage):
        return run_stage(step, updates, state)
    assert isinstance(step, Aggregator)
    return run_rule(step, updates, state)


def run_stage(step: Stage, updates: ClientUpdates, state: State | None = None) -> AppliedStage:
    """Run a stage as the core does."""
    return apply_stage(step, updates, prepare_state(step, updates) if state is None else state)


def run_rule(step: Aggregator, updates: ClientUpdates, state: State | None = None) -> RuleResult:
    """Run a rule as the core does."""
    return core.ask_aggregate(step, updates, prepare_state(step, updates) if state is None else state)


def tensors(result: RuleResult | AppliedStage) -> Mapping[str, Tensor]:
    """Return every tensor of an answer, by name."""
    named = {name: value for name, value in vars(result).items() if isinstance(value, Tensor)}
    return named | {f"state[{name!r}]": tensor for name, tensor in result.state.items()}


def tolerance(values: Tensor) -> float:
    """Return how far sums over clients may differ by rounding.

    The tolerance grows with the longest update.
    """
    digits = 1e-9 if values.dtype == torch.float64 else 1e-4
    return digits * max(float(torch.linalg.vector_norm(values, dim=1).max()), torch.finfo(values.dtype).tiny)


def exceeds_one(totals: Iterable[float]) -> bool:
    """Return whether a total of weights exceeds 1, up to rounding."""
    return any(total > 1 + WEIGHT_TOLERANCE for total in totals)


def is_constant(totals: Sequence[float]) -> bool:
    """Return whether totals of weights are the same each round.

    They are with a server rate.
    """
    return max(totals) - min(totals) <= WEIGHT_TOLERANCE * max(totals)


ROOT_SAMPLES = 20


class Slope(BoundModel):
    """Logistic regression of two classes, `logits = (0, w x)`, with as many parameters as an update has."""

    def __init__(self, size: int) -> None:
        self.layout = Layout((("weight", (size,)),))
        self.facts = ModelFacts(linear=False, convex=True, bias=False)

    def initial_parameters(self, generator: np.random.Generator) -> Tensor:  # noqa: ARG002
        """Return zeros."""
        return torch.zeros(self.layout.size)

    def logits(self, parameters: Tensor, x: Tensor) -> Tensor:
        """Return logits: (R, P) and (b, features) -> (R, b, 2)."""
        slopes = parameters @ x.T
        return torch.stack([torch.zeros_like(slopes), slopes], dim=-1)

    def gradient(self, parameters: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        """Return `sum_b weight_b (sigmoid(w x_b) - y_b) x_b`."""
        slopes = torch.einsum("rnp,nbp->rnb", parameters, x)
        return torch.einsum("rnb,nbp->rnp", weights * (slopes.sigmoid() - y), x)


@functools.cache
def root_of(size: int) -> RootSamples:
    """Draw samples of two classes, in double precision.

    Each class is on its side of the origin.
    """
    generator = np.random.default_rng(11)
    labels = np.arange(ROOT_SAMPLES) % 2
    inputs = generator.standard_normal((ROOT_SAMPLES, size)) + (2 * labels - 1)[:, None]
    return RootSamples(torch.from_numpy(inputs / np.sqrt(size)), torch.from_numpy(labels))


def server_of(size: int, all_clients: Clients, streams: Streams) -> ServerView:
    """Return the server of rounds with updates of this size.

    It is in a federation of these clients.
    """
    return ServerView(Slope(size), all_clients, len(all_clients), 9, streams, root_of(size))
