"""Attacks on the certificates of a finished run: replays with attackers that know everything, and what they change.

A replay trains the run again with the same data, batches and noise, and differs in the attackers alone. Their aim
is taken from the certificates: the certified predictions with the least slack. Two comparisons follow:

1. Forward: what is certified without attackers must be the prediction of the attacked replay as well.
2. Backward: what is certified from the ledger of the attacked replay must be the prediction without attackers.

A certified prediction that differs is a flip, and refutes the certificate.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np

from crfl_core.certification.certifier import CertificateQuestion
from crfl_core.errors import ConfigError, CrflError, PluginError
from crfl_core.plugin_api.certificate import ABSTAIN, Guarantee, Level
from crfl_core.plugin_loading.missing_plugins import missing_plugin_messages
from crfl_core.records.ledger import Ledger, LedgerRecord
from crfl_core.records.votes import GroupVotes
from crfl_core.runs.attack_aims import (
    Classes,
    Statement,
    build_attack,
    choose_size,
    drift_bound,
    find_obstacle,
    leads,
    longest_distance,
    take_aim,
)
from crfl_core.runs.verification import same_thread_count
from crfl_core.runs.worlds import Replays, World, recorded_world

if TYPE_CHECKING:
    from crfl_core.plugin_api.tracker import Tracker
    from crfl_core.runs.results import RunResult


class AttackedStatement(LedgerRecord):
    """Outcome for one statement of a certificate, over all replays.

    `size` is what was attacked: a number of clients, a poisoned share, a distance or the median norm of triggers.
    `certified` counts predictions that are certified against it in either direction, `flipped` those of them that
    changed, and `undecided` those about which the sampled votes of the other world say too little. `changed` counts
    predictions that changed without being certified: an attack that changes nothing shows nothing. `strongest` is the
    largest ratio of the effect to its bound: of the drift, or of a lead that was lost to twice the attackers' votes,
    without what triggers take from it; None if neither is bounded.
    """

    certificate: str
    level: Level
    attack: str
    rounds: str
    clients: int
    size: float
    replays: int
    certified: int
    flipped: int
    undecided: int
    changed: int
    strongest: float | None
    flipped_samples: tuple[int, ...] = ()


class AttackReport(LedgerRecord):
    """All statements of a run that were attacked, and why others were not, by their names."""

    statements: tuple[AttackedStatement, ...]
    not_attacked: dict[str, str]

    @property
    def certified(self) -> int:
        """Return how many certified predictions were attacked, over all statements."""
        return sum(one.certified for one in self.statements)

    @property
    def flipped(self) -> int:
        """Return how many of them changed."""
        return sum(one.flipped for one in self.statements)

    @property
    def strongest(self) -> float | None:
        """Return the largest ratio of an effect to its bound.

        None if nothing was bounded.
        """
        return max((one.strongest for one in self.statements if one.strongest is not None), default=None)


def attack_certificates(
    run: RunResult,
    *,
    clients: int | None = None,
    replays: int = 3,
    certificates: Collection[str] | None = None,
    trackers: Sequence[Tracker] = (),
) -> AttackReport:
    """Attack the certified predictions of a finished run.

    Report which of them change. `clients` malicious clients attack, by default as many as the threat of the run
    assumes, in `replays` replays for each level of each certificate; `certificates` chooses some by name. Writes
    nothing. Raises `CrflError` if the run cannot be replayed here bit for bit.
    """
    check_arguments(run, clients, replays, certificates)
    questions = [
        one for one in run.certifier.questions if certificates is None or one.certificate.title in certificates
    ]
    resampled = {one.request.resample_from for one in questions} - {None}
    statements: list[AttackedStatement] = []
    not_attacked: dict[str, str] = {}
    with TemporaryDirectory(prefix="crfl-") as nowhere, same_thread_count(run.directory):
        worlds = Replays(run, [number for number in resampled if number is not None], Path(nowhere), trackers)
        for statement in find_statements(questions, clients):
            obstacle = find_obstacle(statement, run.ledger, worlds.federation)
            outcome = obstacle or attack_statement(statement, worlds, replays)
            if isinstance(outcome, str):
                not_attacked[statement.name] = outcome
            else:
                statements.append(outcome)
        if run.config.attack is not None:
            own = (compare_with_recorded(one, worlds, run) for one in find_statements(questions, None))
            statements += [outcome for outcome in own if outcome is not None]
    return AttackReport(statements=tuple(statements), not_attacked=not_attacked)


def check_arguments(run: RunResult, clients: int | None, replays: int, certificates: Collection[str] | None) -> None:
    """Raise `CrflError` if the run cannot be attacked like that."""
    facts = run.ledger.facts
    if replays < 1:
        raise ConfigError(f"replays must be at least 1, found {replays}")
    if clients is not None and not 1 <= clients <= facts.clients:
        raise ConfigError(f"clients must be 1 to {facts.clients}, the clients of the run, found {clients}")
    if missing := missing_plugin_messages(run.config.used_plugins()):
        raise PluginError(f"{missing[0]}: replays train with it")
    titles = [question.certificate.title for question in run.certifier.questions]
    for name in certificates or ():
        if name not in titles:
            raise ConfigError(f"{run.path} has no certificate {name!r}: it has {', '.join(titles) or 'none'}")
    if not facts.measured:
        raise CrflError(f"{run.path}: cannot be replayed, because the data of its clients are elsewhere")


def find_statements(questions: Sequence[CertificateQuestion], clients: int | None) -> Iterator[Statement]:
    """Yield the statements of the certificates at every level.

    They are about stated rounds and about unknown ones.
    """
    for question in questions:
        threats = [question.threat]
        if question.any_round is not None and not question.any_round.audit.refusal:
            threats.append(question.any_round.threat)
        for threat in threats:
            assumed = threat if clients is None else threat.model_copy(update={"clients": clients})
            yield from (Statement(question, level, assumed) for level in question.audit.levels)


def attack_statement(statement: Statement, worlds: Replays, replays: int) -> AttackedStatement | str:
    """Replay the attacks on one statement.

    Return a text that says why, if nothing can be attacked.
    """
    federation = worlds.federation
    clean = worlds.clean
    aim = take_aim(statement, clean, federation.test_sets["clean"].features, federation, replays)
    if isinstance(aim, str):
        return aim
    found = Comparison(statement, worlds, aim.size)
    for number in range(replays):
        attack = build_attack(statement, aim, number, clean, federation)
        found.add(worlds.attacked(attack, f"replay: {statement.certificate.title}"), forward=True)
    return found.outcome("pushed updates" if statement.allows_any_update(clean.ledger) else "poisoned data")


def compare_with_recorded(statement: Statement, worlds: Replays, run: RunResult) -> AttackedStatement | None:
    """Compare what the attacked run certifies with the replay without attackers.

    None if the run certifies nothing that can be compared.
    """
    if statement.threat.rounds_at_most is not None or statement.question.uncovered:
        return None
    if find_obstacle(statement, run.ledger, worlds.federation):
        return None
    recorded = recorded_world(run)
    guarantee, directions, _ = statement.certify(recorded)
    if guarantee is None or "backward" not in directions:
        return None
    if statement.level == "feature":
        size = float(run.ledger.clients.delta.max(initial=0.0))
    elif statement.level == "sample":
        size = statement.threat.poison_ratio
    else:
        size = choose_size(statement, guarantee, run.ledger)
    found = Comparison(statement, worlds, size)
    found.add(recorded, forward=False)
    return found.outcome("the attack of the run") if found.certified else None


@dataclass
class Comparison:
    """Comparison of attacked worlds with the clean one, about one statement."""

    statement: Statement
    worlds: Replays
    size: float
    replays: int = 0
    certified: set[int] = field(default_factory=set)
    flipped: set[int] = field(default_factory=set)
    undecided: set[int] = field(default_factory=set)
    changed: set[int] = field(default_factory=set)
    strongest: float | None = None

    @property
    def clean(self) -> World:
        """Return the world without attackers."""
        return self.worlds.clean

    def add(self, attacked: World, *, forward: bool) -> None:
        """Add an attacked world, read backward.

        With `forward` it was attacked for the forward direction, and is read in both.
        """
        self.replays += 1
        pairs = [("backward", attacked, self.clean)]
        if forward:
            pairs.append(("forward", self.clean, attacked))
        certified: set[int] = set()
        changed = differing(self.statement.predictions(self.clean), self.statement.predictions(attacked))
        triggered = self.statement.level == "backdoor"
        for direction, known, other in pairs:
            guarantee, directions, _ = self.statement.certify(known)
            if guarantee is None or direction not in directions:
                continue
            if triggered:
                holds = ~guarantee.abstained
                predictions = self._add_triggers(guarantee, known, other)
            else:
                holds = ~guarantee.abstained & (guarantee.radius >= self.size)
                predictions = self.statement.predictions(other)
            certified |= as_set(holds)
            changed |= differing(self.statement.predictions(known), predictions)
            self.undecided |= as_set(holds & (predictions == ABSTAIN))
            self.flipped |= as_set(holds & (predictions != ABSTAIN) & (predictions != guarantee.prediction))
            self._note_ratio(attacked, known.ledger)
        self.certified |= certified
        self.changed |= changed - certified

    def outcome(self, attack: str) -> AttackedStatement:
        """Return what was found."""
        return AttackedStatement(
            certificate=self.statement.certificate.title,
            level=self.statement.level,
            attack=attack + (" and triggers" if self.statement.level == "backdoor" else ""),
            rounds=self.statement.rounds_text,
            clients=self.statement.threat.attackers,
            size=self.size,
            replays=self.replays,
            certified=len(self.certified),
            flipped=len(self.flipped),
            undecided=len(self.undecided),
            changed=len(self.changed - self.flipped),
            strongest=self.strongest,
            flipped_samples=tuple(sorted(self.flipped)),
        )

    def _add_triggers(self, guarantee: Guarantee, known: World, other: World) -> Classes:
        """Return what the other world predicts under triggers.

        Their norms are just below the certified radii. Inputs without one, or with one that is longer than the domain
        of inputs is wide, get triggers of the attacked size.
        """
        norms = np.where(guarantee.radius < longest_distance(known.ledger), guarantee.radius, self.size)
        labels = np.maximum(self.statement.predictions(known), 0)
        return self.worlds.predict_triggered(other, labels, norms)

    def _note_ratio(self, attacked: World, ledger: Ledger) -> None:
        """Keep the largest ratio of an attack's effect to its bound.

        The bound comes from `ledger`.
        """
        statement = self.statement
        ratio: float | None
        if statement.certificate.groups:
            ratio = lost_lead(statement, self.clean, attacked)
        else:
            bound = largest_drift(statement, ledger, self.size)
            horizon = statement.horizon(ledger)
            drift = np.linalg.norm(attacked.model_of_round(horizon) - self.clean.model_of_round(horizon))
            ratio = float(drift / bound) if np.isfinite(bound) and bound > 0 else None
        if ratio is not None:
            self.strongest = max(ratio, self.strongest or 0.0)


def as_set(mask: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> set[int]:
    """Return the places at which a mask is true."""
    return set(np.flatnonzero(mask).tolist())


def differing(before: Classes, after: Classes) -> set[int]:
    """Return the places at which two decided predictions differ."""
    return as_set((before != after) & (before != ABSTAIN) & (after != ABSTAIN))


def largest_drift(statement: Statement, ledger: Ledger, size: float) -> float:
    """Return the bound on the drift of an attack of this size.

    It includes rounding, and is infinite if the ledger bounds nothing.
    """
    if statement.looks_at_updates(ledger):
        record = ledger.round(statement.horizon(ledger))
        drifts = record.breakdown or ()
        attackers = statement.threat.attackers
        return drifts[attackers] + 2.0 * record.rounding if attackers < len(drifts) else np.inf
    bound = drift_bound(statement, ledger)
    if statement.level == "client":
        cost = bound.client_costs()[int(size)]
    else:
        cost = (bound.sample_cost if statement.level == "sample" else bound.feature_cost)(np.array([size]))[0]
    return float(cost) + bound.rounding


def lost_lead(statement: Statement, clean: World, attacked: World) -> float:
    """Return the largest lost part of a lead.

    It is relative to what the attackers can take: two votes of each.
    """
    labels = statement.predictions(clean)
    before, after = (
        leads(statement.votes(world).expect(GroupVotes), labels, clean.ledger)[0] for world in (clean, attacked)
    )
    groups = clean.ledger.facts.groups
    assert groups is not None
    reached = list(groups.votes)
    if groups.by == "subsets":  # a client reaches all of its groups
        owned = (zip(groups.members, groups.votes, strict=True) for _ in range(clean.ledger.facts.clients))
        reached = [sum(votes for group, votes in one if client in group) for client, one in enumerate(owned)]
    most = 2.0 * sum(sorted(reached, reverse=True)[: statement.threat.attackers])
    lost = np.where(np.isfinite(before), before, 0.0) - np.where(np.isfinite(after), after, 0.0)
    return float(lost.max(initial=0.0) / most)
