"""Aims of attacks on certificates: who attacks, when and how strongly, and which predictions, by the least slack."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

import crfl_core.certification.formulas as formulas
from crfl_core.certification.certifier import CertificateQuestion, audit_certificate, compute_guarantee
from crfl_core.certification.confidence import vote_bounds
from crfl_core.certification.drift import DriftBound
from crfl_core.plugin_api.certificate import ABSTAIN, Certificate, Direction, Guarantee, Level
from crfl_core.records.votes import ExactVotes, GroupDistances, GroupRankings, GroupVotes, LogitVotes
from crfl_core.runs.triggers import is_differentiable
from crfl_core.training.steering import PoisonAim, PoisonKind, PushAim, Pushing, RulePushing, Steering

if TYPE_CHECKING:
    from torch import Tensor

    from crfl_core.plugin_api.attack import Attack
    from crfl_core.records.ledger import Ledger
    from crfl_core.records.threat import Threat
    from crfl_core.records.votes import Votes
    from crfl_core.runs.worlds import World
    from crfl_core.training.federation import Federation

Array = NDArray[np.float64]
Classes = NDArray[np.int64]
SIZE_MARGIN = 1e-6
"""By how much, relatively, a poisoned share or a distance stays below the radius that is attacked."""
CAP_MARGIN = 1e-5
"""By how much, relatively, submitted residuals stay below the cap."""
UNCAPPED_LENGTHS = (10.0, 1e12, float("nan"))
"""Lengths of residuals that the server does not cap, from replay to replay, in those of the longest honest update."""
ABOUT_EQUAL = 0.1
"""Costs of rounds that differ by less, in the largest: the later round is attacked, which training forgets least."""
SIZE_WORDS: Mapping[Level, str] = {
    "client": "malicious client(s)",
    "sample": "of each attacker's samples",
    "feature": "of distance",
    "backdoor": "or more as the norm of a trigger",
}


@dataclass(frozen=True)
class Statement:
    """Statement of a certificate at one level against one threat."""

    question: CertificateQuestion
    level: Level
    threat: Threat

    @property
    def certificate(self) -> Certificate:
        """Return the certificate."""
        return self.question.certificate

    @property
    def name(self) -> str:
        """Return the name of the statement."""
        return f"{self.certificate.title} ({self.level} level, {self.rounds_text})"

    @property
    def rounds_text(self) -> str:
        """Return when attacks are assumed."""
        return "every round" if self.certificate.round_scope() == "every" else self.threat.rounds_text

    def horizon(self, ledger: Ledger) -> int:
        """Return the round whose model an attack moves.

        It is the last one, or that from which noise is drawn again.
        """
        return self.question.request.resample_from or ledger.facts.rounds

    def looks_at_updates(self, ledger: Ledger) -> bool:
        """Ask whether the rule of the attacked round looks at the updates.

        If it does, no fixed weights bound the drift.
        """
        return ledger.round(self.horizon(ledger)).depends == "all"

    def allows_any_update(self, ledger: Ledger) -> bool:
        """Ask whether attackers may submit anything; if not, they poison their data."""
        return self.certificate.groups or self.threat.poison == "update" or self.looks_at_updates(ledger)

    def votes(self, world: World) -> Votes:
        """Answer the certificate's request with the final model of a world."""
        request = self.certificate.request(world.ledger, self.threat, self.question.settings)
        return world.votes(request, self.question.settings)

    def certify(self, world: World) -> tuple[Guarantee | None, tuple[Direction, ...], str]:
        """Return a world's guarantees and the directions in which they hold.

        If they are refused, return None and the reason.
        """
        audit = audit_certificate(self.certificate, world.ledger, self.threat)
        if refusal := audit.refusal or audit.refusal_at(self.level):
            return None, (), refusal
        return self.compute_guarantee(world), audit.directions_at(self.level), ""

    def compute_guarantee(self, world: World) -> Guarantee:
        """Return the guarantees in a world, whatever the audit says."""
        return compute_guarantee(self.certificate, world.ledger, self.votes(world), self.threat, self.level)

    def predictions(self, world: World) -> Classes:
        """Return the predicted classes in a world.

        They are `ABSTAIN` where sampled votes do not decide.
        """
        votes = self.votes(world)
        winners: Classes
        if isinstance(votes, LogitVotes):
            winners = votes.logits.argmax(axis=1)
            return winners
        if isinstance(votes, ExactVotes):
            return votes.winner
        if isinstance(votes, GroupDistances):  # a certificate about triggers abstains where clients alone may win
            winners = formulas.vote_counts(votes.ballots, world.ledger.facts.classes).argmax(axis=1)
            return winners
        if isinstance(votes, GroupVotes):
            return self.compute_guarantee(world).prediction
        first, p_a, p_b = vote_bounds(votes)
        return np.where(p_a > p_b, first, ABSTAIN)


def find_obstacle(statement: Statement, ledger: Ledger, federation: Federation) -> str:
    """Return why replays cannot attack a statement.

    The text is empty if they can.
    """
    threat = statement.threat
    certificate = statement.certificate
    if not certificate.sound:
        return "it claims no soundness"
    if certificate.statement == "marginal":
        return "it is about the average over runs, of which replays show one"
    if threat.clean_world == "scaled" and threat.scale > 1:
        return "attackers who multiply honest updates, too, are not replayed: set threat.clean_world = 'honest'"
    if statement.level == "backdoor":
        found = is_differentiable(federation.maps, federation.data.test_x)
        return "" if found else "triggers are found by gradient, and its feature maps have none"
    if statement.allows_any_update(ledger):
        return "" if statement.level == "client" else "attackers may submit anything, which is the client level"
    if not ledger.facts.model_facts.linear:
        return "poison is computed for linear models only: set threat.poison = 'update'"
    if threat.input_bound is not None:
        return "poison within threat.input_bound is not computed"
    if statement.level == "feature" and threat.poison in ("labels", "replacement"):
        return f"with poison = {threat.poison!r} the radius does not depend on the change of inputs"
    return ""


@dataclass(frozen=True)
class Aim:
    """Aim of the replays of a statement.

    `size` is the attacked radius. `attackers` are those of each replay, `order` the certified predictions, those with
    the least slack first, and `labels` and `rivals`, (m,), the classes from which and to which predictions are pushed.
    """

    size: float
    rounds: tuple[int, ...]
    attackers: tuple[tuple[int, ...], ...]
    order: Classes
    labels: Classes
    rivals: Classes


def choose_size(statement: Statement, guarantee: Guarantee, ledger: Ledger) -> float:
    """Return the radius to attack.

    It is the number of clients, or the median radius, against which half is certified. A poisoned share is at least one
    sample of a batch. Triggers have norms of their own, and this is the median.
    """
    if statement.level == "client":
        return float(statement.threat.attackers)
    radii = np.minimum(guarantee.radius, longest_distance(ledger))
    radii = radii[np.isfinite(radii) & (radii > 0)]
    size = float(np.median(radii)) if len(radii) else 0.0
    if statement.level == "sample":
        size = max(size, (1.0 + 2.0 * SIZE_MARGIN) / float(ledger.clients.batch_size.min()))
    return size


def longest_distance(ledger: Ledger) -> float:
    """Return how far two inputs in the domain may be apart."""
    low, high = ledger.facts.domain
    return float((high - low) * ledger.facts.inputs**0.5)


def take_aim(statement: Statement, clean: World, features: Tensor, federation: Federation, replays: int) -> Aim | str:
    """Choose what to attack by the slack of the certificate.

    Return a text that says why, if nothing can be attacked.
    """
    guarantee, directions, refusal = statement.certify(clean)
    if guarantee is None:
        return refusal
    size = choose_size(statement, guarantee, clean.ledger)
    certified = ~guarantee.abstained
    if "forward" in directions and statement.level != "backdoor":  # each trigger has a norm of its own
        certified &= guarantee.radius >= size
    if not certified.any() or size == 0:
        return f"nothing is certified against {size:.4g} {SIZE_WORDS[statement.level]}"
    if statement.certificate.groups:
        return replace(aim_at_votes(statement, clean, guarantee, certified, replays), size=size)
    parameters = torch.from_numpy(clean.model_of_round(clean.ledger.facts.rounds)).to(features)
    parts = federation.new_model().logits_in_parts(parameters[None], features)
    logits = torch.cat([logits[0] for _, logits in parts]).double().cpu().numpy()
    aim = aim_at_margins(statement, clean, logits, guarantee, certified)
    return replace(aim, size=size, attackers=aim.attackers * replays)


def aim_at_margins(
    statement: Statement, clean: World, logits: Array, guarantee: Guarantee, certified: NDArray[np.bool_]
) -> Aim:
    """Aim at the smallest radii and then at the smallest margins.

    The attack uses the clients and the rounds that cost most.
    """
    ledger = clean.ledger
    threat = statement.threat
    labels = logits.argmax(axis=1)
    others = logits.copy()
    np.put_along_axis(others, labels[:, None], -np.inf, axis=1)
    norms = np.maximum(statement.votes(clean).input_norms, np.finfo(np.float64).tiny)
    order = np.lexsort(((logits.max(axis=1) - others.max(axis=1)) / norms, guarantee.radius))
    horizon = statement.horizon(ledger)
    rounds = tuple(number for number in threat.rounds if number <= horizon)
    costs = np.ones((len(rounds), ledger.facts.clients))
    if not statement.looks_at_updates(ledger):
        bound = drift_bound(statement, ledger)
        costs = bound.client_terms() * np.array([attacked.fade for attacked in bound.attacked])[:, None]
    able = np.array(threat.clients if isinstance(threat.clients, tuple) else range(ledger.facts.clients))
    attackers = able[np.argsort(-costs.sum(axis=0)[able], kind="stable")][: threat.attackers]
    worth = costs[:, attackers].sum(axis=1)
    about = np.floor(worth / worth.max() / ABOUT_EQUAL) if np.isfinite(worth).all() else worth
    chosen = np.sort(np.lexsort((-np.array(rounds), -about))[: threat.attacked_rounds])
    return Aim(
        size=0.0,
        rounds=tuple(rounds[place] for place in chosen),
        attackers=(tuple(sorted(map(int, attackers))),),
        order=order[certified[order]],
        labels=labels,
        rivals=others.argmax(axis=1),
    )


def aim_at_votes(
    statement: Statement, clean: World, guarantee: Guarantee, certified: NDArray[np.bool_], replays: int
) -> Aim:
    """Aim at the votes with the least room.

    The attack uses the groups that narrow most of their leads.
    """
    ledger = clean.ledger
    threat = statement.threat
    groups = ledger.facts.groups
    assert groups is not None
    able = set(threat.clients if isinstance(threat.clients, tuple) else range(ledger.facts.clients))
    labels = np.maximum(guarantee.prediction, 0)
    room, narrowing = leads(statement.votes(clean).expect(GroupVotes), labels, ledger)
    left = room - np.sort(narrowing, axis=2)[:, :, ::-1][:, :, : threat.attackers].sum(axis=2)
    rivals = left.argmin(axis=1)
    order = np.argsort(left.min(axis=1), kind="stable")
    order = order[certified[order]]
    tightest = order[left[order].min(axis=1) == left[order[0]].min()]
    worth = narrowing[tightest, rivals[tightest]].sum(axis=0)
    members = [sorted(able.intersection(groups.members[group])) for group in np.argsort(-worth, kind="stable")]
    reached = [own[0] for own in members if own]
    last = max(0, len(reached) - threat.attackers)
    shifts = [min(shift, last) for shift in range(replays)]
    every = statement.certificate.round_scope() == "every"
    return Aim(
        size=0.0,
        rounds=tuple(range(1, ledger.facts.rounds + 1)) if every else threat.rounds,
        attackers=tuple(tuple(sorted(reached[shift : shift + threat.attackers])) for shift in shifts),
        order=order,
        labels=labels,
        rivals=rivals,
    )


def leads(votes: GroupVotes, labels: Classes, ledger: Ledger) -> tuple[Array, Array]:
    """Return the spare lead over each class, and what groups take.

    The leads are (m, C): what each prediction can spare over each class. What each group takes is (m, C, G). Of a
    Condorcet vote, leads are those of duels.
    """
    groups = ledger.facts.groups
    assert groups is not None
    classes = np.arange(ledger.facts.classes)
    weights = np.array(groups.votes, np.float64)
    own = np.equal(classes, labels[:, None])
    lower = np.less(classes, labels[:, None])
    if isinstance(votes, GroupRankings):
        places = votes.ranks.swapaxes(1, 2)  # (m, C, G)
        narrowing = 2.0 * weights * (np.take_along_axis(places, labels[:, None, None], axis=1) < places)
        return np.where(own, np.inf, narrowing.sum(axis=2) - weights.sum() - lower), narrowing
    ballots = votes.ballots
    totals = formulas.vote_counts(ballots, len(classes), weights)
    room = np.take_along_axis(totals, labels[:, None], axis=1) - totals - lower
    narrowing = weights * (
        np.equal(ballots, labels[:, None])[:, None, :] * 1.0 + np.not_equal(ballots[:, None, :], classes[:, None])
    )
    return np.where(own, np.inf, room), narrowing


def drift_bound(statement: Statement, ledger: Ledger) -> DriftBound:
    """Return the bound on the drift behind a certificate of one model."""
    horizon = statement.horizon(ledger)
    return DriftBound.of(ledger, statement.threat, horizon, observed=statement.question.request.resample_from is None)


def build_attack(statement: Statement, aim: Aim, number: int, clean: World, federation: Federation) -> Attack:
    """Return the attackers of replay `number`, each replay with another target."""
    target = int(aim.order[number % len(aim.order)])
    if statement.allows_any_update(clean.ledger):
        chosen = aim.order if statement.certificate.groups else np.array([target])
        lengths = longest_residuals(statement, clean.ledger, number)
        kind = RulePushing if statement.looks_at_updates(clean.ledger) else Pushing
        pushed = PushAim(chosen, aim.labels[chosen], aim.rivals[chosen], lengths)
        return kind(clients=aim.attackers[number], rounds=aim.rounds).aimed(pushed)
    kind_of_poison, ratio = poison_within(statement, aim.size)
    features = federation.test_sets["clean"].features
    direction = torch.zeros(federation.model.layout.size, dtype=features.dtype, device=features.device)
    blocks = federation.model.layout.unflatten(direction)
    for label, sign in ((int(aim.rivals[target]), 1.0), (int(aim.labels[target]), -1.0)):
        blocks["weight"][label] += sign * features[target]
        if "bias" in blocks:
            blocks["bias"][label] += sign
    direction /= direction.norm()
    start = federation.start.parameters.to(direction)
    poison = PoisonAim(federation.maps, federation.new_model(), start, direction, federation.data.facts.domain)
    return Steering(
        clients=aim.attackers[number],
        rounds=aim.rounds,
        scale=statement.threat.scale,
        kind=kind_of_poison,
        ratio=ratio,
        delta=aim.size * (1.0 - SIZE_MARGIN),
    ).aimed(poison)


def poison_within(statement: Statement, size: float) -> tuple[PoisonKind, float]:
    """Return what attackers poison, and the share of each batch."""
    poison = statement.threat.poison
    if statement.level == "client":
        return "replacement", 1.0
    if statement.level == "sample":
        return ("labels" if poison == "labels" else "replacement"), size * (1.0 - SIZE_MARGIN)
    return ("features" if poison == "features" else "features+labels"), statement.threat.poison_ratio


def longest_residuals(statement: Statement, ledger: Ledger, number: int) -> Array:
    """Return the longest residual of each client in each round, (T, N).

    The cap limits its length. Without a cap a client may submit any length.
    """
    rows = ledger.clients
    longest = UNCAPPED_LENGTHS[number % len(UNCAPPED_LENGTHS)] * (1.0 + float(rows.submitted_norm.max()))
    free = np.full(len(rows), longest)
    if not statement.certificate.groups:
        free = np.where(np.isfinite(rows.update_bound), rows.update_bound, 10.0 * rows.submitted_norm.max())
    lengths = np.zeros((ledger.facts.rounds, ledger.facts.clients))
    lengths[rows.round - 1, rows.client] = np.where(np.isfinite(rows.cap), rows.cap * (1.0 - CAP_MARGIN), free)
    return lengths
