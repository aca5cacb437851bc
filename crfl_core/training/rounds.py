"""Algorithm 1 of the paper: federated averaging with clipping and noise on the global model.

`play_round` is the algorithm on one page; `play_rounds` repeats it. Symbols of the paper: `clip_norm` is rho_t,
`noise_std` is sigma_t, `models` are w~_t, and `clipped` is Clip(w_t) before noise. The weights p_i are those of
`aggregation`; the ledger keeps them as `weight_bound`, which radii read.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from crfl_core.errors import PluginFailure, RunError
from crfl_core.plugin_api.aggregator import state_key
from crfl_core.plugin_api.local_algorithm import StatefulAlgorithm
from crfl_core.plugin_api.plugin_errors import errors_of
from crfl_core.plugin_loading.mutation_guard import InputsChanged
from crfl_core.records.random_streams import Streams, of_group
from crfl_core.records.round import LocalUpdates, State, Submission, TrainingTask
from crfl_core.training import aggregator_contract as contract
from crfl_core.training.aggregation import Aggregation, needs_all_updates, start_aggregation
from crfl_core.training.aggregation_chain import ChainResult, States
from crfl_core.training.crafting import AttackerSubmissions, initial_attack_state, learn_from_round, observe_round
from crfl_core.training.server_optimiser import optimise
from crfl_core.training.submissions import Arrivals, Submissions, UpdateBuffer, rows_of_group, train_clients

if TYPE_CHECKING:
    from crfl_core.training.federation import Federation
    from crfl_core.training.groups import ServerSteps
    from crfl_core.training.session import RoundPlan, Session


@dataclass(frozen=True)
class Progress:
    """State of a group after `number` rounds: its models for the next round, (R, P), and the state of every plugin.

    `replicas` numbers the models: 0 is the run itself, from 1 on its continuations with other noise. `failed` says why
    the group does not train any more. What attackers remember is the same in all groups, since they may talk to each
    other. It lies apart from the states of aggregation, which must not see it; continuations are honest and have none.
    `memory` is what a `StatefulAlgorithm` keeps of the group's clients, (R, members, P) by name, else empty.
    """

    number: int
    models: Tensor
    states: tuple[States, ...]
    replicas: range = range(1)
    failed: str | None = None
    attack_state: State | None = None
    memory: State = field(default_factory=dict)


@dataclass(frozen=True)
class RoundOutcome:
    """Round that a group has played: its plan, what arrived, the aggregates, and the models before and after.

    `results` has the change of each of the R models. `clipped` are the models before noise is added.
    """

    plan: RoundPlan
    before: Progress
    arrivals: Arrivals
    results: tuple[ChainResult, ...]
    accepted: tuple[bool, ...]
    clipped: Tensor
    after: Progress


def play_rounds(session: Session, progress: tuple[Progress, ...]) -> Iterator[tuple[RoundOutcome, ...]]:
    """Play the rounds after `progress`, one at a time.

    Each yields the outcome of every group. The models of round T are clipped only: Clip(w_T).
    """
    while progress[0].number < session.federation.config.rounds:
        outcomes = play_round(session, progress)
        progress = tuple(outcome.after for outcome in outcomes)
        yield outcomes
        del outcomes  # what a rule has said about all updates is not kept through the next round


def play_round(session: Session, progress: tuple[Progress, ...], *, clean: bool = False) -> tuple[RoundOutcome, ...]:
    """Play one round of Algorithm 1.

    Its steps are: broadcast, train, attack, aggregate, optimise, clip, accept, add noise. All groups train in one pass,
    and updates stream: `trained` and `submitted` are iterators, so a linear chain keeps no update. Models are (R, P):
    the run itself, or R of its continuations. If `clean`, attackers are honest.
    """
    streams = session.federation.streams
    plans = session.plan_round(progress[0].number + 1, is_run=0 in progress[0].replicas and not clean)
    groups = [GroupRound(session, plan, before) for plan, before in zip(plans, progress, strict=True)]
    task = broadcast(session, groups)  # the models w~
    trained = train_clients(session.engine, task)  # w_i - w~ of every participant, by local SGD
    submitted = apply_attack(groups, trained)  # u_i
    aggregates = aggregate_updates(groups, submitted)  # sum_i p_i u_i + offset
    outcomes = []
    for group, plan, aggregate in zip(groups, plans, aggregates, strict=True):
        start = group.before.models
        changes = apply_server_optimiser(group, aggregate)
        candidates = clip(start + torch.stack([change.update for change in changes]), plan.clip_norm)
        accepted = ask_accept_hooks(group, candidates, changes)
        clipped = choose_models(accepted, candidates, start, plan.clip_norm)
        models = add_noise(clipped, plan.noise_std, streams, plan.number, group.before.replicas, plan.group)
        outcomes.append(group.finish(changes, accepted, clipped, models))
    return update_attack_state(session.federation, groups, outcomes)


def broadcast(session: Session, groups: Sequence[GroupRound]) -> TrainingTask:
    """Tell the hooks that the round starts, and return the task.

    The task says who trains from which models, (R, G, P).
    """
    for group in groups:
        if group.plan.is_run:
            current = group.plan.seen_from(group.before.models[0])
            session.hooks.observe("crfl_round_started", run=session.context, current=current)
    models = torch.stack([group.before.models for group in groups], dim=1)
    plan = groups[0].plan
    clients = session.federation.participation.participants(plan.number)
    names = groups[0].memory
    return TrainingTask(
        plan.number,
        models,
        clients,
        plan.is_run,
        groups[0].before.attack_state,
        {name: torch.cat([group.memory[name][:, group.places] for group in groups], dim=1) for name in names},
        {name: torch.stack([group.memory[name].mean(1) for group in groups], dim=1) for name in names},
        session.federation.origins,
    )


def apply_attack(
    groups: Sequence[GroupRound], trained: Iterator[LocalUpdates]
) -> Iterator[tuple[GroupRound, Submission]]:
    """Yield what each group's participants submit.

    Attackers may replace their updates, and bad updates become zero.
    """
    ends = [group.plan.rows.stop for group in groups]
    for part in trained:
        for group in groups[bisect_right(ends, part.part.start) : bisect_left(ends, part.part.stop) + 1]:
            for submission in group.submit(part):
                yield group, submission
    for group in groups:
        for submission in group.submit_waiting():
            yield group, submission


def aggregate_updates(
    groups: Sequence[GroupRound], submitted: Iterator[tuple[GroupRound, Submission]]
) -> list[tuple[ChainResult, ...]]:
    """Aggregate what each group's participants submit.

    Return the aggregate for each of the group's models.
    """
    for group, submission in submitted:
        group.add(submission)
    aggregates = []
    for group in groups:
        results: tuple[ChainResult, ...] | None = None
        with group.isolate_failure():
            if group.failed is None:
                group.check_usable()
                results = group.aggregation.results()
        aggregates.append(group.without_change() if results is None else results)
    return aggregates


def apply_server_optimiser(group: GroupRound, aggregate: tuple[ChainResult, ...]) -> tuple[ChainResult, ...]:
    """Return what the server's optimiser makes of each model's aggregate.

    The result is the change of the model; mostly it is the aggregate itself.
    """
    plan = group.plan
    before = group.before
    optimiser = plan.server.optimiser
    with group.isolate_failure():
        if group.failed is None:
            changes = aggregate
            if optimiser is not None:
                models = zip(before.models, aggregate, before.states, strict=True)
                changes = tuple(optimise(optimiser, plan, *model) for model in models)
            check_finite(changes, plan.number)
            return changes
    return group.without_change()


def clip(models: Tensor, norm: float) -> Tensor:
    """Return `Clip_rho(w) = w / max(1, ||w|| / rho)`.

    Each model, (R, P), is projected as a whole vector on a ball.
    """
    norms: Tensor = torch.linalg.vector_norm(models, dim=1, keepdim=True)
    return models / (norms / norm).clamp(min=1.0)


def ask_accept_hooks(group: GroupRound, candidates: Tensor, changes: tuple[ChainResult, ...]) -> tuple[bool, ...]:
    """Ask the plugins' hooks whether they accept each candidate model.

    A group that has failed accepts none.
    """
    session = group.session
    start = group.before.models
    if (group.before.failed or group.failed) is not None:
        return (False,) * len(start)
    if not session.hooks.may_reject:
        return (True,) * len(start)
    return tuple(
        session.hooks.accept(session.context, group.plan.seen_from(model), candidate, change.states)
        for model, candidate, change in zip(start, candidates, changes, strict=True)
    )


def choose_models(accepted: tuple[bool, ...], candidates: Tensor, start: Tensor, clip_norm: float) -> Tensor:
    """Return each candidate that was accepted.

    The clipped model of before takes the place of each other one.
    """
    if all(accepted):
        return candidates
    return torch.where(torch.tensor(accepted, device=start.device)[:, None], candidates, clip(start, clip_norm))


def add_noise(
    models: Tensor, std: float, streams: Streams, number: int, replicas: range, group: int | None = None
) -> Tensor:
    """Return `w + N(0, std^2 I)` for each model, (R, P).

    The noise of each comes from a stream of its own. Replica 0 is the run. Noise that is drawn again for votes belongs
    to the votes: it must not be known to attackers.
    """
    if std == 0:
        return models
    dtype = np.float64 if models.dtype == torch.float64 else np.float32
    noise = np.empty(models.shape, dtype)
    for row, replica in zip(noise, replicas, strict=True):
        purpose = of_group("votes/continuation" if replica else "noise", group)
        streams.generator(purpose, round_number=number, replica=replica).standard_normal(dtype=dtype, out=row)
    return models + std * torch.from_numpy(noise).to(models.device)


def update_attack_state(
    federation: Federation, groups: Sequence[GroupRound], outcomes: Sequence[RoundOutcome]
) -> tuple[RoundOutcome, ...]:
    """Return the outcomes with what the attackers remember after the round.

    The attackers learn from one group after the other.
    """
    state = outcomes[0].before.attack_state
    if state is None:
        return tuple(outcomes)
    for group, outcome in zip(groups, outcomes, strict=True):
        if group.attacker_submissions is not None:
            start = outcome.before.models[0]
            following = outcome.after.models[0]
            submitted = group.attacker_submissions.rows
            seen = observe_round(federation, outcome.plan, start, following, submitted)
            state = learn_from_round(federation, seen, state)
    return tuple(replace(outcome, after=replace(outcome.after, attack_state=state)) for outcome in outcomes)


class GroupRound:
    """Round of one group that is being played: its plan, where the group stood before, and what arrived so far.

    Of several groups one may fail and keep its models, and the others do not notice. A group that is alone fails with
    the run.
    """

    def __init__(self, session: Session, plan: RoundPlan, before: Progress) -> None:
        federation = session.federation
        start = before.models[0]
        clients = len(plan.clients)
        self.session = session
        self.plan = plan
        self.before = before
        self.failed: str | None = None
        self.arrivals = Arrivals(clients)
        self.attacker_submissions: AttackerSubmissions | None = None
        if before.attack_state is not None:
            self.attacker_submissions = AttackerSubmissions(federation, plan, start)
        self.memory = before.memory or empty_memory(federation, before.models, plan.group)
        self.places = places_of_participants(federation, plan) if self.memory else torch.zeros(0, dtype=torch.int64)
        self._submissions = Submissions(federation, plan, start, before.states[0], before.attack_state)
        self._buffer = UpdateBuffer(clients) if needs_all_updates(session, plan) else None

    @cached_property
    def aggregation(self) -> Aggregation:
        """Return the aggregation of the group.

        It starts when the first updates arrive.
        """
        return start_aggregation(self.session, self.plan, self.before.models, self.before.states)

    def submit(self, part: LocalUpdates) -> Iterator[Submission]:
        """Yield what the group's participants of a part submit.

        A group that has failed submits nothing.
        """
        own_part = rows_of_group(part, self.plan.rows)
        if own_part is None or self.failed is not None:
            return
        self._remember(own_part)
        ready = own_part if self._buffer is None else self._buffer.add(own_part)
        if ready is not None:
            yield from self._isolated(self._submissions.receive(ready))

    def _remember(self, part: LocalUpdates) -> None:
        """Store what some participants keep.

        The memory before the round stays as it is.
        """
        if part.memory and self.memory is self.before.memory:
            self.memory = {name: values.clone() for name, values in self.memory.items()}
        for name, values in part.memory.items():
            self.memory[name][:, self.places[part.part]] = values

    def submit_waiting(self) -> Iterator[Submission]:
        """Yield what attackers who waited for each other submit."""
        if self.failed is None:
            yield from self._isolated(self._submissions.receive_waiting())

    def add(self, submission: Submission) -> None:
        """Add what some participants submitted to the aggregate of the group."""
        with self.isolate_failure():
            self.arrivals.add(submission)
            if self.attacker_submissions is not None:
                self.attacker_submissions.add(submission)
            if self._buffer is not None:  # all updates are here
                self.check_usable()
            self.aggregation.add(submission)

    def check_usable(self) -> None:
        """Raise `RunError` if no update of the round can be used.

        Not for remote clients: whether the run stops there, to be resumed with those who were too slow, must not depend
        on what one of them sends. A round without replies is a round of zero updates.
        """
        federation = self.session.federation
        if federation.facts.measured or federation.config.server.bad_update == "drop":
            self.arrivals.check_usable(self.plan.number)

    def finish(
        self, changes: tuple[ChainResult, ...], accepted: tuple[bool, ...], clipped: Tensor, models: Tensor
    ) -> RoundOutcome:
        """Return the outcome of the round.

        A group that has failed stands still from now on.
        """
        before = self.before
        failed = before.failed or self.failed
        if failed is not None:
            after = replace(before, number=self.plan.number, failed=failed)
        else:
            states = tuple(
                change.states if keep else old
                for change, old, keep in zip(changes, before.states, accepted, strict=True)
            )
            after = Progress(self.plan.number, models, states, before.replicas, memory=self.memory)
        return RoundOutcome(self.plan, before, self.arrivals, changes, accepted, clipped, after)

    def without_change(self) -> tuple[ChainResult, ...]:
        """Return results in which no update reached a model."""
        clients = len(self.plan.clients)
        pairs = zip(self.before.models, self.before.states, strict=True)
        return tuple(ChainResult.without_change(clients, model, states) for model, states in pairs)

    @contextmanager
    def isolate_failure(self) -> Iterator[None]:
        """Note a failure as that of this group.

        It is a failure of a plugin or of the round. It is raised if the group is alone.
        """
        try:
            yield
        except InputsChanged:  # what the plugin changed may be what other groups see
            raise
        except (PluginFailure, RunError) as error:
            if self.plan.group is None:
                raise
            self.failed = f"round {self.plan.number}: {error}"

    def _isolated(self, submissions: Iterator[Submission]) -> Iterator[Submission]:
        """Yield submissions until one fails.

        Work done with a submission may fail as well.
        """
        with self.isolate_failure():
            for submission in submissions:
                yield submission
                if self.failed is not None:
                    return


def check_finite(changes: tuple[ChainResult, ...], number: int) -> None:
    """Raise `PluginFailure` if the change of a model is not finite."""
    for change in changes:
        if not torch.isfinite(change.update).all():
            raise PluginFailure(
                f"aggregation: round {number}: the aggregate of finite updates is not finite in "
                f"{change.update.dtype}: an offset or a weight is too large"
            )


def initial_progress(federation: Federation) -> tuple[Progress, ...]:
    """Return the state of every group before the first round.

    This is w_0 and what the steps of the aggregation have prepared.
    """
    progress = []
    for group in range(len(federation.participation.members)):
        parameters = federation.start_of_group(group).parameters.to(federation.device, federation.dtype)
        states = (prepare_states(federation, group, federation.servers[group]),)
        progress.append(Progress(0, parameters[None], states, attack_state=initial_attack_state(federation)))
    return tuple(progress)


def empty_memory(federation: Federation, models: Tensor, group: int | None) -> State:
    """Return what the algorithm keeps of clients before round 1.

    These are zeros for each client of the group, or nothing for most algorithms.
    """
    algorithm = federation.config.training.algorithm
    if not isinstance(algorithm, StatefulAlgorithm):
        return {}
    members = len(federation.participation.members[group or 0])
    return {name: models.new_zeros(len(models), members, models.shape[1]) for name in algorithm.remembers}


def places_of_participants(federation: Federation, plan: RoundPlan) -> Tensor:
    """Return the places of a round's participants in their group."""
    members = np.asarray(federation.participation.members[plan.group or 0])
    order = np.argsort(members)
    return torch.from_numpy(order[np.searchsorted(members, plan.clients.ids, sorter=order)])


def prepare_states(federation: Federation, group: int, server: ServerSteps) -> States:
    """Ask every step of a group's aggregation for its first state."""
    states: dict[str, State] = {}
    for position, step in enumerate(server.aggregation):
        with errors_of(f"aggregation.{position}", step):
            states[state_key(position)] = contract.ask_initial_state(step, federation.server_view(1, group))
    return {key: state for key, state in states.items() if state}
