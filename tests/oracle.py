"""Algorithm 1 of the paper once more: float64, plain loops, one sample at a time, written from the paper alone.

It shares nothing with the code under test but the random draws, which it takes from `Streams` by their documented
meaning: one permutation of a client's samples per epoch, one Gaussian vector per round. Below it are the small
federations that the tests of the numerical parts are played on.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from crfl_core import load_config
from crfl_core.extend import (
    Aggregator,
    Clients,
    ClientUpdates,
    Layout,
    Plugin,
    Registry,
    Round,
    RoundRecord,
    RuleResult,
    State,
    Streams,
    Tracker,
    hookimpl,
)
from crfl_core.records.ledger import ClientColumns
from crfl_core.runs.recorded_directory import table_digest
from crfl_core.training import rounds
from crfl_core.training.aggregation_chain import States
from crfl_core.training.federation import Federation, build
from crfl_core.training.ledger_rows import record_round
from crfl_core.training.rounds import RoundOutcome
from crfl_core.training.session import Session

Vector = NDArray[np.float64]
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Backdoor:
    """What attackers do in attacked rounds: q_B samples per batch get pattern and target, gamma scales the update.

    `rate` and `steps` replace those that they use as honest clients.
    """

    clients: tuple[int, ...]
    rounds: tuple[int, ...]
    per_batch: int
    target: int
    pattern: Vector
    scale: float
    rate: float | None = None
    steps: int | None = None


@dataclass(frozen=True)
class Problem:
    """A federation: who holds which samples, how each of them trains, what the server does. Inputs lie in [0, 1]."""

    x: Vector
    y: Rows
    classes: int
    holdings: Sequence[Rows]
    participants: Sequence[Sequence[int]]
    rates: Sequence[float]
    steps: Sequence[int]
    batch_size: int
    weight_decay: float
    clip_norms: Sequence[float]
    noise_stds: Sequence[float]
    streams: Streams
    backdoor: Backdoor | None = None
    ball_radius: float | None = None
    server_step: Callable[[Vector], Vector] | None = None
    """What the server makes of an aggregate; called once per round, in order."""


def algorithm_1(problem: Problem) -> list[Vector]:
    """Return the models that are broadcast, w~_1, ..., w~_{T-1}, and the clipped one, Clip(w_T)."""
    model = np.zeros(problem.classes * (problem.x.shape[1] + 1))
    models = []
    total = len(problem.clip_norms)
    for number in range(1, total + 1):
        taking_part = problem.participants[number - 1]
        everything = sum(len(problem.holdings[client]) for client in taking_part)
        aggregate = np.zeros_like(model)
        for client in taking_part:
            weight = len(problem.holdings[client]) / everything
            aggregate += weight * submitted(problem, model, client, number)
        combined = model + (aggregate if problem.server_step is None else problem.server_step(aggregate))
        rho, sigma = problem.clip_norms[number - 1], problem.noise_stds[number - 1]
        model = combined / max(1.0, float(np.sqrt(sum(value * value for value in combined))) / rho)
        if number < total:
            model = model + sigma * problem.streams.generator("noise", round_number=number).standard_normal(len(model))
        models.append(model)
    return models


def submitted(problem: Problem, start: Vector, client: int, number: int) -> Vector:
    """Return a client's update: tau steps of mini-batch SGD; attackers poison every batch and scale the result."""
    backdoor = problem.backdoor
    if backdoor is None or client not in backdoor.clients or number not in backdoor.rounds:
        backdoor = None
    rate, steps, scale = problem.rates[client], problem.steps[client], 1.0
    if backdoor is not None:
        rate, steps, scale = backdoor.rate or rate, backdoor.steps or steps, backdoor.scale
    local = start.copy()
    for batch in batches(problem, client, number, steps):
        gradient = problem.weight_decay * local
        for position, row in enumerate(batch):
            x, label = problem.x[row], int(problem.y[row])
            if backdoor is not None and position < backdoor.per_batch:
                x, label = np.clip(x + backdoor.pattern, 0.0, 1.0), backdoor.target
            gradient = gradient + sample_gradient(problem, local, x, label) / len(batch)
        local = local - rate * gradient
    return scale * (local - start)


def batches(problem: Problem, client: int, number: int, steps: int) -> Iterator[list[int]]:
    """Return the rows of each local step: permutations of the client's samples, cut one after the other."""
    generator = problem.streams.generator("batches", round_number=number, client=client)
    left: list[int] = []
    for _ in range(steps):
        if not left:
            left = list(generator.permutation(problem.holdings[client]))
        batch, left = left[: problem.batch_size], left[problem.batch_size :]
        yield batch


def sample_gradient(problem: Problem, model: Vector, x: Vector, label: int) -> Vector:
    """Return the gradient of -log softmax(W x + b)[label] at one sample, flat: rows of W, then b."""
    if problem.ball_radius is not None:
        x = x / max(float(np.linalg.norm(x)), problem.ball_radius)
    inputs = len(x)
    weight, bias = model[: -problem.classes].reshape(problem.classes, inputs), model[-problem.classes :]
    logits = weight @ x + bias
    exponentials = np.exp(logits - logits.max())
    residual = exponentials / exponentials.sum()
    residual[label] -= 1.0
    return np.concatenate([np.outer(residual, x).ravel(), residual])


POISON = {
    "type": "model-replacement",
    "clients": [0],
    "rounds": [2],
    "scale": 3.0,
    "poisoned_per_batch": 3,
    "trigger": {"type": "features", "features": [0, 3]},
}
"""An attack on data without pixels."""


def tiny(**changes: Any) -> dict[str, Any]:
    """Return a fast config: eight unequal clients on 300 digits, one of which attacks in round 2 of 4."""
    config: dict[str, Any] = {
        "name": "tiny",
        "seed": 1,
        "rounds": 4,
        "device": "cpu",
        "dataset": {"type": "digits", "train_samples": 300, "test_samples": 60},
        "partition": {"type": "dirichlet", "clients": 8, "alpha": 0.7},
        "training": {"learning_rate": 0.2, "steps": 5, "batch_size": 16},
        "server": {"clip_norm": 4.0, "noise_std": 0.02},
        "votes": {"models": 64},
        "engine": {"type": "local", "threads": 1},
        "storage": {"figures": []},
        "attack": {"type": "model-replacement", "clients": [0], "rounds": [2], "scale": 3.0, "poisoned_per_batch": 3},
    }
    return config | changes


def federation_of(config: Mapping[str, Any], plugins: Mapping[str, type[Plugin]] | None = None) -> Federation:
    """Build the federation that a config describes."""
    return build(load_config(config, registry=Registry(plugins)).config.with_own_plugins())


class Played(NamedTuple):
    """A round of the run itself: the clipped model, the broadcast one behind it, and the lines of the ledger."""

    outcome: RoundOutcome
    record: RoundRecord
    clients: ClientColumns

    @property
    def aggregate(self) -> torch.Tensor:
        """Return the clipped model before noise, (P,)."""
        return self.outcome.clipped[0]

    @property
    def parameters(self) -> torch.Tensor:
        """Return the model that is broadcast next, (P,)."""
        return self.outcome.after.models[0]

    @property
    def states(self) -> States:
        """Return the states of the plugins."""
        return self.outcome.after.states[0]


def played(federation: Federation) -> list[Played]:
    """Play all rounds of a federation, in memory."""
    session = Session.of(federation, Path("nowhere"))
    with session.open_engine():
        outcomes = rounds.play_rounds(session, rounds.initial_progress(federation))
        return [Played(outcome, *record_round(federation, outcome)) for (outcome,) in outcomes]


def participants(samples: list[int]) -> Clients:
    """Clients with these numbers of samples that train as usual."""
    zeros = np.zeros(len(samples))
    ones = np.ones(len(samples), np.int64)
    return Clients(
        ids=np.arange(len(samples)),
        samples=np.asarray(samples, np.int64),
        learning_rate=zeros,
        steps=ones,
        batch_size=ones,
        last_batch=ones,
        weight_decay=zeros,
        retention=ones.astype(np.float64),
        update_bound=zeros,
        group=np.zeros(len(samples), np.int64),
    )


def updates_of(samples: list[int], size: int = 6, seed: int = 0) -> ClientUpdates:
    """Gaussian updates of such clients, in float64."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(len(samples), size, generator=generator, dtype=torch.float64)
    start = torch.zeros(size, dtype=torch.float64)
    return ClientUpdates(values, Round(1, 1, participants(samples), Layout((("w", (size,)),)), Streams(0), start))


class Median(Aggregator):
    """The coordinate-wise median, as a rule that looks at all updates. Refuses what it must never see."""

    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        clients = len(updates.values)
        if clients != len(updates.round.clients) or (updates.values == 0).all(1).any():
            raise RuntimeError("a zeroed row was shown")
        median = updates.values.median(0).values
        weights = updates.values.new_full((clients,), 1 / clients)
        return RuleResult(median, weights, offset=median - weights @ updates.values)


class Veto(Tracker):
    """Rejects the model of round 2."""

    @hookimpl
    def crfl_accept_round(self, current: Round) -> bool | None:
        return False if current.number == 2 else None


class Momentum(Aggregator):
    """The mean plus half of what it was moved by before: a rule that must be given its state back after a resume."""

    def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
        weights = updates.values.new_full((len(updates.values),), 1 / len(updates.values))
        before = state.get("velocity", torch.zeros_like(updates.values[0])) / 2
        velocity = weights @ updates.values + before
        rounds = state.get("rounds", torch.zeros((), dtype=torch.int64)) + 1
        return RuleResult(velocity, weights, offset=before, state={"velocity": velocity, "rounds": rounds})


def stopping(number: int, error: BaseException) -> type[Momentum]:
    """Return the same rule, but it raises in one round."""

    class Stopping(Momentum):
        def aggregate(self, updates: ClientUpdates, state: State) -> RuleResult:
            if updates.round.number == number:
                raise error
            return super().aggregate(updates, state)

    return Stopping


OTHER_CONFIG = ["config.toml", "manifest.json"]
"""The files in which equal runs with other configs differ: the manifest has the digest of the config."""
OTHER_ENGINE = ["audit.json", *OTHER_CONFIG[:1], "ledger.json", *OTHER_CONFIG[1:]]
"""The same for runs with another engine than `local`, which ledger and audit name."""


def contents(path: Path) -> dict[str, bytes]:
    """Read every file below a run directory by its relative name, except the lock and the record of versions.

    A manifest is taken without the line about the record of versions, and a status without digests.
    """
    files = {str(file.relative_to(path)): file for file in sorted(path.rglob("*")) if file.is_file()}
    found = {name: file.read_bytes() for name, file in files.items() if name not in (".lock", "environment.json")}
    for name in found:
        if name.endswith("manifest.json"):
            manifest = json.loads(found[name])
            manifest["files"].pop("environment.json", None)
            found[name] = json.dumps(manifest | {"run": None}).encode()
        elif name.endswith("status.json"):
            with contextlib.suppress(ValueError):
                found[name] = json.dumps(json.loads(found[name]) | {"manifest": None, "sha256": None}).encode()
    return found


def sealed(path: Path, *, keep_manifest: bool = False) -> Path:
    """Rewrite the manifest of a run directory for its files as they are now, as a forger would."""
    manifest = json.loads((path / "manifest.json").read_text())
    if not keep_manifest:
        kept = [name for name in manifest["files"] if (path / name).exists()]
        manifest["files"] = {name: sha256((path / name).read_bytes()).hexdigest() for name in kept}
        (path / "manifest.json").write_text(json.dumps(manifest))
    status = {"format": 1, "state": "finished"}
    status["manifest"] = sha256((path / "manifest.json").read_bytes()).hexdigest()
    write_status(path, status)
    return path


def write_status(path: Path, status: Mapping[str, Any]) -> None:
    """Write the status of a run with a digest that fits."""
    (path / "status.json").write_text(json.dumps({**status, "sha256": table_digest(status)}))
