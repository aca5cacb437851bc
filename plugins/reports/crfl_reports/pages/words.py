"""Sentences about a run. Every sentence about robustness says what it rests on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from crfl_core.certification.levels import LEVEL_WORDS
from crfl_core.reporting.verdict import CLEAN_WORLDS, READINGS, attack_text

if TYPE_CHECKING:
    from crfl_core.plugin_api.certificate import Check
    from crfl_core.records.ledger import GroupFacts, Ledger
    from crfl_core.reporting.metrics import Curve, Metrics
    from crfl_core.runs.results import RunResult

STATUSES = {
    "failed": "does not hold",
    "declared": "taken on trust",
    "held": "holds",
}
"""Words for the outcome of a check, the worst first; each is a term of the glossary."""

SHOWN_RADII = 4


class Term(NamedTuple):
    """Text that the glossary explains under `key`."""

    text: str
    key: str


Rich = list[str | Term]
"""Text with terms in it."""


def summary(run: RunResult) -> list[str]:
    """Describe the run in a few sentences: training, attack, quality, refused certificates."""
    metrics = run.metrics
    return [training(run), attack(run), *quality(metrics, run.ledger), *refusals(metrics)]


def training(run: RunResult) -> str:
    """Describe the training."""
    facts = run.ledger.facts
    groups = "" if facts.groups is None else f", in {facts.models} groups with a model each, {vote(facts.groups)}"
    sizes = run.metrics.partition.sizes
    held = f"{min(sizes):,}" if min(sizes) == max(sizes) else f"{min(sizes):,} to {max(sizes):,}"
    return (
        f"{count_text(facts.clients, 'client')} with {held} samples each trained the model “{facts.model}” for "
        f"{count_text(facts.rounds, 'round')}{groups}; {facts.classes} classes."
    )


def vote(groups: GroupFacts) -> str:
    """Describe the rule by which the groups vote."""
    if groups.voting == "condorcet":
        return "whose Condorcet vote elects the class that beats every other one in their rankings"
    return "whose plurality vote elects the class that most of them predict"


def attack(run: RunResult) -> str:
    """Describe the attackers, and their share of the weights."""
    found = run.metrics.attackers
    if found is None:
        return "No client attacked this run."
    share = found.mean_weight_share
    weight = "" if share is None else f" Their share of the weights that reached the model was {percent(share)}."
    return f"Attack: {attack_text(found, run.metrics.partition.clients)}.{weight}"


def quality(metrics: Metrics, ledger: Ledger) -> Iterator[str]:
    """Describe the accuracy of the model, and the success of a backdoor."""
    clean = ledger.facts.test_sets["clean"].samples
    yield f"The final model is right on {percent(metrics.accuracy)} of {clean:,} clean test samples."
    if (own := metrics.trusted_baseline) is not None:
        most = metrics.clients_above_baseline()
        adds = "no more than that is certified, so the federation adds nothing to these samples"
        if most == 0:
            adds = "more than that is certified only if no client is malicious"
        elif most is not None:
            adds = f"more than that is certified up to {radius(most, 'client')}"
        yield (
            f"A model trained on the server's own {own.samples:,} labelled samples alone, which no client can touch, "
            f"is right on {percent(own.accuracy)}; {adds}."
        )
    if (backdoor := metrics.backdoor) is not None:
        name = ledger.facts.class_names[backdoor.target]
        yield (
            f"The backdoor works on {percent(backdoor.success_rate)} of {backdoor.samples:,} backdoored samples, which "
            f"are then taken for class “{name}”; without the backdoor this happens to "
            f"{percent(backdoor.clean_rate)} of the samples of other classes."
        )


def refusals(metrics: Metrics) -> Iterator[str]:
    """Name the refused certificates, or that there are none at all."""
    for name, reason in metrics.refused.items():
        yield f"Refused: {name}. {reason}."
    if not metrics.curves and not metrics.refused:
        yield "No certificate was asked for."


def strongest_curves(metrics: Metrics) -> list[Curve]:
    """Return the clean curve of every certificate at its strongest level.

    Proofs come first.
    """
    clean = [curve for curve in metrics.curves if curve.test_set == "clean"]
    order = list(LEVEL_WORDS)
    found = [
        min((curve for curve in clean if curve.certificate == name), key=lambda one: order.index(one.level))
        for name in dict.fromkeys(curve.certificate for curve in clean)
    ]
    return sorted(found, key=lambda curve: bool(curve.label or curve.conditional))


def shown_radii(curve: Curve) -> list[tuple[float, float]]:
    """Return some radii of a curve with their certified accuracy.

    At the client level these are the first numbers of clients; at others they are chosen evenly.
    """
    known = [pair for pair in zip(curve.radii, curve.certified_accuracy, strict=True) if pair[0] > 0]
    if not known:
        return [(curve.radii[0], curve.certified_accuracy[0])]
    if curve.level == "client" or len(known) <= SHOWN_RADII:
        return known[:SHOWN_RADII]
    return [known[number * (len(known) - 1) // (SHOWN_RADII - 1)] for number in range(SHOWN_RADII)]


def basis(curve: Curve) -> Rich:
    """Say in plain words what the numbers of a curve rest on.

    The glossary explains the terms.
    """
    parts: Rich = [Term(curve.statement.capitalize(), curve.statement), " statement"]
    if curve.directions:
        parts.append(": holds for ")
        for number, direction in enumerate(curve.directions):
            parts += [" and for "] * bool(number)
            parts.append(Term(READINGS.get(direction, direction), direction))
        parts.append(", compared with ")
    else:
        parts.append(f": {curve.label or 'proves nothing in either direction'}; compared with ")
    parts.append(Term(CLEAN_WORLDS.get(curve.clean_world, curve.clean_world), f"{curve.clean_world} world"))
    parts.append(f". Attackers act in {curve.rounds}." if curve.rounds else ".")
    for number, condition in enumerate(curve.conditional):
        if number == 0:
            parts += [" ", Term("Conditional", "conditional"), ": "]
        parts.append(f"{'; ' if number else ''}{condition}")
    return [*parts, "."] if curve.conditional else parts


def any_rounds(text: str) -> str:
    """Name any rounds, as many as the stated ones.

    >>> any_rounds("round 10"), any_rounds("rounds 3..5")
    ('any one round', 'any that many rounds')
    """
    return "any one round" if text.startswith("round ") else "any that many rounds"


def count_checks(checks: Iterable[Check]) -> str:
    """Count the assumptions by their outcome.

    Readings that are not available are not assumptions.
    """
    found = list(checks)
    missing = [one.direction for one in found if is_missing_reading(one)]
    counts = {
        words: sum(one.status == status and not is_missing_reading(one) for one in found)
        for status, words in (("held", "checked"), ("declared", "taken on trust"), ("failed", "not holding"))
    }
    text = ", ".join(f"{count} {words}" for words, count in counts.items())
    return text + "".join(f"; cannot be read {direction}" for direction in dict.fromkeys(missing))


def is_missing_reading(check: Check) -> bool:
    """Return whether a failed check only forbids one direction.

    The certificate can then not be read in that direction.
    """
    return check.status == "failed" and check.direction is not None


def outcome(check: Check) -> str:
    """Name the outcome of a check."""
    return f"not {check.direction}" if is_missing_reading(check) else STATUSES[check.status]


def radius(value: float, level: str) -> str:
    """Write a radius with its unit."""
    if math.isinf(value):
        words = {"feature": "any change of poisoned inputs", "backdoor": "any trigger"}
        return words.get(level, "any number")
    if level == "client":
        return f"{value:g} malicious {'client' if value == 1 else 'clients'}"
    if level == "backdoor":
        return f"a trigger of norm {value:g}"
    return f"{percent(value)} poisoned samples" if level == "sample" else f"a change of {value:g}"


def percent(share: float) -> str:
    """Write a share of samples in percent.

    >>> percent(0.5), percent(1 / 3), percent(1.0)
    ('50%', '33.3%', '100%')
    """
    return f"{100 * share:.1f}".removesuffix(".0") + "%"


def count_text(number: int, noun: str) -> str:
    """Write a number of things.

    >>> count_text(1, "client"), count_text(1200, "round")
    ('1 client', '1,200 rounds')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
