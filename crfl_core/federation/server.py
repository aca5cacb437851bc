"""The server's side of a round, for any number of models at once: take in updates, aggregate, clip, add noise.

There is one way for runs and their continuations. Updates of chains that are linear in capped updates are added up as
they arrive, so memory does not grow with the number of clients; whoever needs all of them at once says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crfl_core.federation import answers, stepping
from crfl_core.federation.bad_updates import good_updates, hides, spread_out
from crfl_core.federation.chain import ChainResult, LinearChain, States, dependence, row_norms, run_chain, shrinkage
from crfl_core.federation.session import Plan, Session
from crfl_core.federation.submissions import Received, Submissions, needs_others
from crfl_core.untouched import Touched, untouched
from crfl_interface.errors import PluginFailure, RunError
from crfl_interface.kinds.complaints import settings_of, written_at
from crfl_interface.kinds.engine import Engine
from crfl_interface.streams import Streams, of_group
from crfl_interface.updates import ClientUpdates, LocalUpdates, Poisoning, State, TrainingTask


@dataclass(frozen=True)
class Aggregated:
    """What each of the R models of a group is moved by, and what arrived for the first: one entry per participant.

    A group whose round `failed` keeps its models. `own` is what the attackers among the participants submitted, (a, P),
    if they want to know.
    """

    updates: Tensor
    results: tuple[ChainResult, ...]
    norms: NDArray[np.float64]
    bad: NDArray[np.bool_]
    scale: NDArray[np.float64]
    poisoning: Poisoning
    failed: str | None = None
    own: Tensor | None = None


class Aggregation(Protocol):
    """Takes in what arrives, and has a result when everything has."""

    def add(self, received: Received) -> None:
        """Some participants' updates."""

    def results(self) -> tuple[ChainResult, ...]:
        """What became of all updates, for each model."""


def aggregate(
    session: Session,
    plans: Sequence[Plan],
    models: Tensor,
    states: Sequence[Sequence[States]],
    attack_state: State | None = None,
) -> tuple[Aggregated, ...]:
    """Train from the models, (R, G, P), and aggregate what each group submits. In a run R is 1, and mostly G, too."""
    clients = session.federation.participation.round(plans[0].number)
    task = TrainingTask(plans[0].number, models, clients, plans[0].attacked, attack_state)
    each = zip(plans, models.unbind(1), states, strict=True)
    groups = [GroupRound(session, plan, own, before, attack_state) for plan, own, before in each]
    for part in collect(session.engine, task):
        for group in groups:
            group.take(part)
    return tuple(group.aggregated() for group in groups)


class GroupRound:
    """The round of one group: takes what belongs to it, and lets nothing of it out before the round is over.

    Of several groups one may fail, and the others never notice; a group that is alone fails with the run.
    """

    def __init__(
        self, session: Session, plan: Plan, models: Tensor, states: Sequence[States], attack_state: State | None
    ) -> None:
        self._session, self._plan, self._models, self._states = session, plan, models, states
        self._submissions = Submissions(session.federation, plan, models[0], states[0], attack_state)
        self._watched = None if attack_state is None else Watched(session, plan, models[0])
        self._whole = needs_all(session, plan)
        self._gathering = Gathering(len(plan.clients))
        self._columns = Columns(len(plan.clients))
        self._failed: str | None = None
        self._aggregation: Aggregation | None = None

    def take(self, part: LocalUpdates) -> None:
        """The rows of a part that are this group's, if there are any."""
        own = within(part, self._plan.rows)
        if own is None or self._failed is not None:
            return
        ready = self._gathering.add(own) if self._whole else own
        if ready is not None:
            with self._failing():
                self._add(self._submissions.of(ready))

    def aggregated(self) -> Aggregated:
        """What became of all updates of the group."""
        columns, results = self._columns, self._results()
        updates = torch.stack([result.update for result in results])
        own = None if self._watched is None else self._watched.own
        arrived = columns.norms, columns.bad, columns.scale, columns.poisoning
        return Aggregated(updates, results, *arrived, self._failed, own)

    def _results(self) -> tuple[ChainResult, ...]:
        with self._failing():
            if self._failed is None:
                self._add(self._submissions.rest())
                self._columns.check_usable(self._plan.number)
                assert self._aggregation is not None
                optimiser = self._plan.server.optimiser
                each = zip(self._models, self._aggregation.results(), self._states, strict=True)
                moved = (stepping.stepped(optimiser, self._plan, *one) for one in each)
                return finite(tuple(moved), self._plan.number)
        count = len(self._plan.clients)
        return tuple(nothing(count, *one) for one in zip(self._models, self._states, strict=True))

    def _add(self, submitted: Iterator[Received]) -> None:
        for received in submitted:
            self._columns.add(received)
            if self._watched is not None:
                self._watched.add(received)
            if self._whole:
                self._columns.check_usable(self._plan.number)
            if self._aggregation is None:
                given = self._plan, self._models, self._states
                linear = streams(self._session, self._plan)
                self._aggregation = LinearSums(*given) if linear else WholeRounds(self._session, *given)
            self._aggregation.add(received)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except Touched:  # what it changed may be what other groups see
            raise
        except (PluginFailure, RunError) as error:
            if self._plan.group is None:
                raise
            self._failed = f"round {self._plan.number}: {error}"


def within(part: LocalUpdates, rows: slice) -> LocalUpdates | None:
    """The rows of a part that lie in a group, counted from the group's first; None if there are none."""
    first, last = max(part.part.start, rows.start), min(part.part.stop, rows.stop)
    if first >= last:
        return None
    place = slice(first - rows.start, last - rows.start)
    if last - first == part.part.stop - part.part.start:
        return replace(part, part=place)
    inside = slice(first - part.part.start, last - part.part.start)
    return LocalUpdates(place, part.updates[:, inside], part.poisoning.take(np.arange(inside.start, inside.stop)))


def nothing(clients: int, model: Tensor, states: States) -> ChainResult:
    """A round in which nobody's update reached the model."""
    zeros = torch.zeros(clients, dtype=torch.float64)
    return ChainResult(torch.zeros_like(model), zeros, zeros, torch.full_like(zeros, torch.inf), zeros, "all", states)


def finite(results: tuple[ChainResult, ...], number: int) -> tuple[ChainResult, ...]:
    """The results of a chain, whose aggregates are numbers."""
    for result in results:
        if not torch.isfinite(result.update).all():
            raise PluginFailure(
                f"aggregation: round {number}: the aggregate of finite updates is not finite in "
                f"{result.update.dtype}: an offset or a weight is too large"
            )
    return results


def streams(session: Session, plan: Plan) -> bool:
    """Whether updates can be added up as they arrive: the chain is linear, and bad ones keep their weight."""
    linear = dependence(plan.server.aggregation, plan.clients) != "all"
    return linear and session.federation.config.server.bad_update == "zero" and not session.hooks.replaces_weights


def needs_all(session: Session, plan: Plan) -> bool:
    """Whether somebody must see all updates at once: the chain, or attackers who craft theirs from the others'."""
    crafts = bool(plan.conduct.attacking.any()) and needs_others(session.federation.attack)
    return crafts or not streams(session, plan)


def collect(engine: Engine, task: TrainingTask) -> Iterator[LocalUpdates]:
    """The parts of a round, in order of participants, each checked; they may come in any order.

    A part with updates of the wrong shape counts as non-finite: the clients sent it. Every participant must be trained
    exactly once from every model, which is the engine's affair.
    """
    clients = len(task.clients)
    seen, reached = np.zeros(clients, np.int64), 0
    waiting: dict[int, LocalUpdates] = {}
    who = f"engine {engine.full_name}: train() ({written_at(type(engine).train)})"
    with settings_of("engine", engine), untouched(who, task):
        for trained in engine.train(task):
            if not isinstance(trained, LocalUpdates):
                raise PluginFailure(f"the engine must yield LocalUpdates, found {type(trained).__name__}")
            rows = range(clients)[trained.part]
            seen[trained.part] += 1
            if not rows or rows.step != 1 or (seen[trained.part] > 1).any():
                break
            waiting[rows.start] = well_formed(trained, rows, task)
            while reached in waiting:
                ready = waiting.pop(reached)
                yield ready
                reached = ready.part.stop
    if (seen != 1).any() or reached != clients:
        missing = task.clients.ids[np.append(np.flatnonzero(seen != 1), reached)[0]]
        raise PluginFailure(f"the engine must train every participant once: client {missing} in round {task.number}")


def well_formed(trained: LocalUpdates, rows: range, task: TrainingTask) -> LocalUpdates:
    """The part that an engine returned for these participants, as the server can use it."""
    (replicas, _, size), poisoning, updates = task.starts.shape, trained.poisoning, trained.updates.to(task.starts)
    if not isinstance(poisoning, Poisoning) or {len(column) for column in vars(poisoning).values()} != {len(rows)}:
        raise PluginFailure(
            f"the engine must return the measured poison of each participant, found others in round {task.number}"
        )
    if updates.ndim == 3 and len(updates) != replicas:
        raise PluginFailure(
            f"the engine must train every participant from all {replicas} models, found {len(updates)} in round "
            f"{task.number}"
        )
    if updates.shape != (replicas, len(rows), size):
        updates = task.starts.new_full((replicas, len(rows), size), torch.nan)
    return LocalUpdates(slice(rows.start, rows.stop), updates, poisoning)


class Gathering:
    """All parts of a group as one. Each is copied as it comes: an engine may use its memory again for the next."""

    def __init__(self, clients: int) -> None:
        self._clients = clients
        self._updates: Tensor | None = None
        self._columns = {name: column.copy() for name, column in vars(Poisoning.none(clients)).items()}

    def add(self, part: LocalUpdates) -> LocalUpdates | None:
        """One part more, in order; everything, once this was the last."""
        if part.part == slice(0, self._clients):
            return part
        if self._updates is None:
            self._updates = part.updates.new_empty(len(part.updates), self._clients, part.updates.shape[2])
        self._updates[:, part.part] = part.updates
        for name, column in self._columns.items():
            column[part.part] = getattr(part.poisoning, name)
        if part.part.stop < self._clients:
            return None
        return LocalUpdates(slice(0, self._clients), self._updates, Poisoning(**self._columns))


def gathered(parts: Iterable[LocalUpdates], clients: int) -> LocalUpdates:
    """All parts of a round, in order, as one."""
    gathering = Gathering(clients)
    whole = [gathering.add(part) for part in parts][-1]
    assert whole is not None
    return whole


class Columns:
    """What the ledger keeps of the updates that arrived, for the first model; memory for one number per client."""

    def __init__(self, clients: int) -> None:
        self.norms, self.scale = np.zeros(clients), np.ones(clients)
        self.bad = np.zeros(clients, np.bool_)
        self.usable = False
        self.poisoning = Poisoning(**{name: column.copy() for name, column in vars(Poisoning.none(clients)).items()})

    def add(self, received: Received) -> None:
        """Some participants."""
        self.norms[received.part], self.scale[received.part] = received.norms[0].numpy(), received.scale
        self.bad[received.part] = received.bad[0].numpy()
        self.usable = self.usable or bool((~received.bad).all(0).any())
        for name, column in vars(self.poisoning).items():
            column[received.part] = getattr(received.poisoning, name)

    def check_usable(self, number: int) -> None:
        """A round without a single update is an error, not silence."""
        if not self.usable:
            raise RunError(
                f"round {number}: no usable update is left, all {len(self.bad)} are non-finite or of the wrong shape: "
                "lower training.learning_rate"
            )


class Watched:
    """What the attackers among the participants submit, attacking or not: `own` is (a, P), in order of participants."""

    def __init__(self, session: Session, plan: Plan, start: Tensor) -> None:
        self._rows = np.flatnonzero(np.isin(plan.clients.ids, session.federation.participation.attackers))
        self._places = np.arange(len(plan.clients))
        self.own = start.new_zeros(len(self._rows), len(start))

    def add(self, received: Received) -> None:
        """Some participants, of the run itself."""
        rows = self._places[received.part]
        mine = np.flatnonzero(np.isin(rows, self._rows))
        self.own[np.searchsorted(self._rows, rows[mine])] = received.updates[0, mine]


class LinearSums:
    """`sum_i p_i cap_i(u_i) + offset` of every model, added up as updates arrive. Nothing of them is kept."""

    def __init__(self, plan: Plan, models: Tensor, states: Sequence[States]) -> None:
        self._chain = LinearChain.of(plan.server.aggregation, plan.facts)
        self._models, self._states = models, states
        self._sums = torch.zeros_like(models)
        self._pull, self._sizes = (torch.zeros(len(models), dtype=torch.float64) for _ in range(2))
        self._factors, self._residuals = (
            torch.ones(len(models), len(plan.clients), dtype=torch.float64) for _ in range(2)
        )

    def add(self, received: Received) -> None:
        """Project and add: a projection changes the factor of an update, and how much of the model is taken off."""
        chain, part, updates = self._chain, received.part, received.updates
        weights, decay, caps = chain.weights[part], chain.decay[part], chain.caps[part]
        lengths = torch.where(received.bad, 0.0, received.norms)
        residuals = row_norms(updates, self._models[:, None], decay) if bool(decay.any()) else lengths
        factors = shrinkage(caps, residuals, updates.dtype)
        shares = weights * factors
        self._sums += torch.bmm(shares.to(updates)[:, None], updates)[:, 0]
        self._pull += ((factors - 1.0) * weights * decay).sum(1)
        self._sizes += (shares.abs() * lengths).sum(1)
        self._factors[:, part], self._residuals[:, part] = factors, residuals

    def results(self) -> tuple[ChainResult, ...]:
        """One for each model."""
        chain, pulled = self._chain, self._pull.to(self._sums)[:, None] * self._models
        updates = self._sums + pulled if bool(self._pull.any()) else self._sums
        updates = updates if chain.offset is None else updates + chain.offset.to(updates)
        sizes = self._sizes + self._pull.abs() * row_norms(self._models)
        sizes = sizes if chain.offset is None else sizes + float(row_norms(chain.offset))
        rounding = answers.tolerance(len(chain.weights), updates)
        return tuple(
            ChainResult(
                update=update,
                weights=chain.weights * factors,
                weight_bound=chain.weights,
                cap=chain.caps,
                residual=residual,
                depends=chain.depends,
                states=states,
                rounding=rounding * float(size),
                has_offset=chain.offset is not None or bool(pull),
            )
            for update, factors, residual, size, pull, states in zip(
                updates, self._factors, self._residuals, sizes, self._pull, self._states, strict=True
            )
        )


class WholeRounds:
    """Chains that look at all updates, once for each model; bad rows are hidden from them."""

    def __init__(self, session: Session, plan: Plan, models: Tensor, states: Sequence[States]) -> None:
        self._session, self._plan, self._models, self._states = session, plan, models, states
        self._results: tuple[ChainResult, ...] = ()

    def add(self, received: Received) -> None:
        """All updates of the round."""
        each = zip(received.updates, received.bad.numpy(), self._models, self._states, strict=True)
        self._results = tuple(self._run(values, bad, model, states) for values, bad, model, states in each)

    def results(self) -> tuple[ChainResult, ...]:
        """One for each model."""
        return self._results

    def _run(self, values: Tensor, bad: NDArray[np.bool_], model: Tensor, states: States) -> ChainResult:
        steps = self._plan.server.aggregation
        dropping = self._session.federation.config.server.bad_update == "drop"
        updates = ClientUpdates(values, self._plan.seen_from(model))
        if hide := hides(steps, updates, bad, drop=dropping):
            updates = good_updates(updates, bad)
        # Hooks are handed the same updates without what the server has.
        seen = replace(updates.round, server_side=self._session.federation.server(self._plan.number))
        result = run_chain(steps, replace(updates, round=seen), states)
        if hide and dropping:
            result = replace(result, depends="all")
        result = self._reported(updates, result)
        return spread_out(result, ~bad) if hide else result

    def _reported(self, updates: ClientUpdates, result: ChainResult) -> ChainResult:
        """The result with the weights that a plugin puts in the place of those of the chain; they must rebuild it."""
        assert result.reported is not None
        if (
            not self._plan.attacked
            or (answer := self._session.hooks.effective_weights(updates, result.reported)) is None
        ):
            return result
        weights, who = answer
        answers.check_reported(who, weights, result.reported, updates.values)
        weights = weights.double().cpu()
        return replace(result, weights=weights, weight_bound=weights, depends="all", weights_from=who)


def clip(models: Tensor, norm: float) -> Tensor:
    """`Clip_rho(w) = w / max(1, ||w|| / rho)`: each model, (R, P), projected as a whole vector on a ball."""
    norms: Tensor = torch.linalg.vector_norm(models, dim=1, keepdim=True)
    return models / (norms / norm).clamp(min=1.0)


def add_noise(
    models: Tensor, std: float, streams: Streams, number: int, replicas: range, group: int | None = None
) -> Tensor:
    """`w + N(0, std^2 I)` on every parameter of each model, (R, P), from a stream of its own.

    Replica 0 is the run. Noise that is drawn again for votes belongs to the votes: it must not be known to attackers.
    """
    if std == 0:
        return models
    dtype = np.float64 if models.dtype == torch.float64 else np.float32
    noise = np.empty(models.shape, dtype)
    for row, replica in zip(noise, replicas, strict=True):
        purpose = of_group("votes/continuation" if replica else "noise", group)
        streams.generator(purpose, round_number=number, replica=replica).standard_normal(dtype=dtype, out=row)
    return models + std * torch.from_numpy(noise).to(models.device)
