"""Certificates that a config refuses by itself, found before round 1 on the ledger of a run that goes well.

Facts are those of the run. What only training can show is assumed to be as certificates like it: no message is bad, no
attacker trains otherwise than the protocol says, weights sum to 1, models start at norm 0. So a check that fails here
fails in the run as well; a check that holds here may still fail.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from crfl_core.certification.certifier import (
    Audit,
    audit_certificate,
    check_kind_of_run,
    is_for_other_kind_of_run,
    select_levels,
)
from crfl_core.certification.threat_resolution import enlarge_threat
from crfl_core.errors import ConfigError, PluginFailure
from crfl_core.plugin_api.aggregator import Aggregator, CapStage, caps_residuals, chain_dependence
from crfl_core.plugin_api.attack import Attack, RealisedAttack
from crfl_core.plugin_api.base import is_built_in
from crfl_core.plugin_api.server_optimiser import FixedRate
from crfl_core.records import schedules
from crfl_core.records.ledger import ClientColumns, Ledger, RoundRecord

if TYPE_CHECKING:
    from crfl_core.plugin_api.certificate import Certificate
    from crfl_core.records.round import Clients
    from crfl_core.records.threat import Threat
    from crfl_core.training.federation import Federation

KNOWN_COLUMNS = (
    "learning_rate",
    "steps",
    "batch_size",
    "last_batch",
    "weight_decay",
    "retention",
    "update_bound",
)
"""Columns of the ledger that the protocol fixes."""
SAMPLED_ROUNDS = 500
"""Rounds at which changing rates are looked at; between them they count as unchanged."""


def check_certificates(federation: Federation) -> dict[str, str]:
    """Return what the config refuses before round 1.

    The values are reasons, the keys the names of certificates or of their levels. Raises `ConfigError` if it refuses
    every certificate.
    """
    audits = plan_audits(federation)
    names: dict[str, list[str]] = {}
    for audit in audits:
        for name, reason in audit.refusals.items():
            names.setdefault(reason, []).append(name)
    refusals = {", ".join(together): reason for reason, together in names.items()}
    if audits and sum(map(refuses_all, audits)) == len(federation.config.certificates):
        reasons = "\n".join(f"  {name}: {why}" for name, why in refusals.items())
        raise ConfigError(
            f"this config refuses every certificate, so nothing is trained:\n{reasons}\n"
            "Follow one of these remedies, or train without certificates: certificates = []",
            key="certificates",
        )
    return refusals


def plan_audits(federation: Federation) -> list[Audit]:
    """Audit the certificates of a config on the planned ledger.

    Audits that say nothing about the run are left out.
    """
    certificates = federation.config.certificates
    if not certificates:
        return []
    ledger = plan_ledger(federation)
    threat = plan_threat(federation)
    return [audit for one in certificates if (audit := plan_audit(one, ledger, threat)) is not None]


def refuses_all(audit: Audit) -> bool:
    """Return whether a certificate is refused wholly or at every level."""
    return bool(audit.refusal) or all(audit.refusal_at(level) for level in audit.levels)


def plan_audit(certificate: Certificate, ledger: Ledger, threat: Threat | None) -> Audit | None:
    """Audit a certificate on the planned ledger.

    None if that says nothing about the run. Certificates of others are only asked whether they are about one model or
    about groups, and which vote of these.
    """
    if is_for_other_kind_of_run(certificate, ledger):
        check = check_kind_of_run(certificate, ledger)
        return Audit(certificate.title, certificate.sound, certificate.label, select_levels(certificate), (check,))
    if threat is None or not is_built_in(certificate):
        return None
    try:
        return audit_certificate(certificate, ledger, enlarge_threat(threat, ledger))
    except PluginFailure:  # the audit of the run will say so
        return None


def plan_threat(federation: Federation) -> Threat | None:
    """Return the threat of the run as far as it is known.

    None if a foreign attack states it after training.
    """
    config = federation.config
    attack = config.attack
    participation = federation.participation
    attacked = [number for number in participation.attack_rounds if participation.behaviour(number).attacking.any()]
    claimed = None
    if attack is not None and attacked:
        if type(attack).threat is not Attack.threat and not is_built_in(attack):
            return None
        size = len(attacked) * len(participation.attackers)
        claimed = attack.threat(
            RealisedAttack(
                round=np.repeat(attacked, len(participation.attackers)),
                client=np.tile(participation.attackers, len(attacked)),
                poison_ratio=np.zeros(size),
                delta=np.ones(size),
                flips=np.ones(size, np.int64),
                scale=np.full(size, 1.0 if attack.scale == "replace" else attack.scale),
            )
        )
    return config.threat.resolve(claimed, config.rounds)


def plan_ledger(federation: Federation) -> Ledger:
    """Return the ledger of a run that goes well.

    Every group has one participant in every round.
    """
    training = federation.config.training
    total = federation.config.rounds
    sampled = {1}
    if schedules.varies((training.learning_rate, training.steps)):
        sampled |= set(np.linspace(1, total, min(total, SAMPLED_ROUNDS)).astype(int).tolist())
    columns: dict[str, list[float]] = {name: [] for name in ClientColumns.names()}
    records = []
    rows: list[dict[str, float]] = []
    facts = planned_facts(federation)
    server = federation.config.server
    for number in range(1, total + 1):
        noise: dict[str, Any] = {
            "clip_norm": schedules.value_at(server.clip_norm, number),
            "noise_std": 0.0 if number == total else schedules.value_at(server.noise_std, number),
        }
        if number in sampled:
            rows = [plan_row(federation, clients) for clients in fastest_by_group(federation, number)]
        for group, row in enumerate(rows):
            records.append(RoundRecord.model_construct(round=number, group=group, **facts, **noise))
            for name, value in (row | {"round": number, "group": group}).items():
                columns[name].append(value)
    return Ledger(
        federation.facts,
        tuple(records),
        ClientColumns(**{name: np.array(values) for name, values in columns.items()}),
    )


def fastest_by_group(federation: Federation, number: int) -> Iterator[Clients]:
    """Yield the participant with the largest rate in each group.

    `number` is the round.
    """
    clients = federation.participation.participants(number)
    for group in range(len(federation.participation.members)):
        rows = np.flatnonzero(clients.group == group)
        yield clients.take(rows[[int(clients.learning_rate[rows].argmax())]])


def plan_row(federation: Federation, clients: Clients) -> dict[str, float]:
    """Return the columns of a participant that follows the protocol.

    It has all the weight.
    """
    known = {name: getattr(clients, name)[0] for name in KNOWN_COLUMNS}
    cap = planned_cap(federation, clients)
    return (
        dict.fromkeys(ClientColumns.names(), 0)
        | known
        | {
            "client": clients.ids[0],
            "honest_rate": clients.learning_rate[0],
            "honest_steps": clients.steps[0],
            "weight": 1.0,
            "weight_bound": 1.0,
            "cap": cap,
            "quarantined": False,
            "attacking": False,
            "scale": 1.0,
            "batch_factor": 1.0,
        }
    )


def planned_cap(federation: Federation, clients: Clients) -> float:
    """Return the cap on the residual of a client.

    It is infinite without a stage that caps it.
    """
    caps = [np.inf]
    for stage in federation.config.aggregation:
        if isinstance(stage, CapStage) and caps_residuals(stage, clients):
            likely = 1.0 if np.isinf(clients.update_bound[0]) else float(clients.update_bound[0])
            caps.append(float(stage.caps(clients)[0]) if is_built_in(stage) else likely)
    return min(caps)


def planned_facts(federation: Federation) -> dict[str, Any]:
    """Return what every record says of rounds in which nothing unusual happens."""
    config = federation.config
    optimiser = config.server.optimiser
    plain = optimiser is None or isinstance(optimiser, FixedRate)
    *stages, rule = config.aggregation
    bounded = isinstance(rule, Aggregator) and type(rule).breakdown is not Aggregator.breakdown
    bounded = bounded and plain and all(stage.depends == "own" for stage in stages)
    depends = chain_dependence(config.aggregation, federation.participation.participants(1))
    return {
        "start_norm": 0.0,
        "start_operator_norm": 0.0,
        "norm_before_clip": 0.0,
        "accepted": True,
        "depends": depends if plain else "all",
        "weights_from": "chain",
        "participants": 1,
        "quarantined": 0,
        "breakdown": (0.0,) * (federation.facts.clients + 1) if bounded else None,
        "server_rate": 1.0 if plain else None,
    }
