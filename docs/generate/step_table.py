"""Write the table of aggregation steps: weights behind each, and usable certificates.

Nothing of it is declared anywhere: every step aggregates a small run, and the audits of all certificates are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from crfl_core import RunConfig, run
from crfl_core.config.merging import parse_value
from crfl_core.config.options import example_value
from crfl_core.extend import Aggregator, Certificate, ClientUpdates, Plugin, Registry, RuleResult, Tracker, hookimpl
from crfl_core.plugin_api.aggregator import AggregationStep
from crfl_core.testing.sample_run import SPOTS, Spots, small_config

MEANING = {
    (True, "fixed"): "a fixed share, by which the core adds up",
    (True, "all"): "a share that is found from all updates of the round",
    (False, "fixed"): "that of the rule behind it, through a fixed matrix",
    (False, "own"): "that of the rule behind it, times the factor by which the core shortened the update",
    (False, "all"): "that of the rule behind it, through a matrix that is found from all updates",
}
"""What p_i is behind a rule or a stage, by what it depends on."""

Verdicts = dict[str, str]
ATTACKED = 3
THREAT = {"clients": 1, "rounds": [ATTACKED], "poison": "update"}
CLIENTS = 12


@cache
def step_table(distribution: str) -> str:
    """Write a row for every rule and stage of a distribution."""
    registry = Registry()
    certificates = {
        name: registry.load("certificate", name) for name in plugin_names(registry, "certificate", distribution)
    }
    unsound = [name for name, certificate in certificates.items() if not is_sound(certificate)]
    head = ["step", "what p_i is", "sound certificates that can use it", *(f"`{name}`" for name in unsound)]
    rows = [f"| {' | '.join(head)} |", "| " + " | ".join("---" for _ in head) + " |"]
    for name in plugin_names(registry, "aggregator", distribution):
        step = registry.load("aggregator", name)
        assert issubclass(step, AggregationStep)
        meaning, verdicts = try_step(name, step, certificates)
        sound = [f"`{one}`" for one, verdict in verdicts.items() if one not in unsound and verdict != "refused"]
        cells = [f"[`{name}`](plugins.md#{name})", meaning, ", ".join(sound) or "none"]
        rows.append(f"| {' | '.join([*cells, *(verdicts[one] for one in unsound)])} |")
    return "\n".join(rows) + "\n"


def plugin_names(registry: Registry, kind: str, distribution: str) -> list[str]:
    """Return the names of the plugins of a kind in a distribution."""
    names = registry.names(kind)
    return [name for name in names if any(one.distribution == distribution for one in registry.found[kind][name])]


def is_sound(certificate: type[Plugin]) -> bool:
    """Return whether a certificate claims soundness."""
    return issubclass(certificate, Certificate) and certificate.sound


def try_step(name: str, step: type[AggregationStep], certificates: Mapping[str, type[Plugin]]) -> tuple[str, Verdicts]:
    """Run a step and return what p_i was, and the verdict of each certificate."""
    required = {option: example_value(field) for option, field in step.model_fields.items() if field.is_required()}
    table: dict[str, Any] = {"type": name} | {option: parse_value(value or "") for option, value in required.items()}
    few = {"continuations": 6, "selection": 3}
    config = small_config(
        dtype="float64",
        dataset={"type": SPOTS, "scaling": "none", "classes": 2, "samples": 200},
        partition={"type": "iid", "clients": CLIENTS},
        aggregation=[table] if issubclass(step, Aggregator) else [table, "fedavg"],
        votes={"models": 10, "selection_models": 5},
        threat=THREAT,
        certificates=[
            {"type": one} | {option: value for option, value in few.items() if option in certificate.model_fields}
            for one, certificate in certificates.items()
        ],
    )
    if "reserve" in RunConfig.model_fields:  # some rules look at data that the server trusts
        config["reserve"] = {"root": 20}
    watched: set[int] = set()

    class PerCoordinate(Tracker):
        """Records the rounds in which the rule had a weight for every coordinate."""

        @hookimpl
        def crfl_effective_weights(self, updates: ClientUpdates, aggregate: RuleResult) -> None:
            watched.update({updates.round.number} if aggregate.full_weights is not None else ())

    plugins: dict[str, type[Plugin]] = {SPOTS: Spots, "per-coordinate": PerCoordinate}
    with TemporaryDirectory(prefix="crfl-") as folder:
        result = run(config | {"trackers": ["per-coordinate"]}, out=Path(folder, "run"), plugins=plugins)
        audits = {audit.certificate: audit for audit in result.audits}
        record = result.ledger.round(ATTACKED)
    verdicts = {
        one: "refused" if audit.refusal else "with a condition" if depends_on_weights(audit.conditions) else "yes"
        for one, audit in audits.items()
    }
    words = [MEANING[issubclass(step, Aggregator), step.depends]]
    words += ["the largest over all coordinates"] if watched else []
    words += ["beside a part of the aggregate that is in no client's weight"] if record.has_unweighted_part else []
    words += ["which depends on earlier rounds, too"] if record.carries_state else []
    return ", ".join(words), verdicts


def depends_on_weights(conditions: tuple[str, ...]) -> bool:
    """Return whether a condition of an audit asks for other weights."""
    return any("weights" in condition.partition(":")[0] for condition in conditions)
