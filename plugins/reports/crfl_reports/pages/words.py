"""Sentences about a run. Every sentence about robustness says what it rests on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from crfl_core.certification.levels import LEVEL_WORDS

if TYPE_CHECKING:
    from crfl_core.records.ledger import Ledger
    from crfl_core.reporting.metrics import Curve, Metrics
    from crfl_core.runs.results import RunResult

STATEMENTS = {
    "pathwise": "With the same noise, batches and participants, this run without the attack would have given the same "
    "prediction.",
    "tail": "The majority vote over many continuations, in which the noise is drawn again, would have been the same "
    "without the attack.",
    "marginal": "Over all noise that training might have drawn, the most likely prediction would have been the same; "
    "one training cannot prove this.",
}
DIRECTIONS = {
    "backward": "about this run, which may have been attacked: had its attackers behaved, the prediction would have "
    "been the same",
    "forward": "about attacks that might have come instead: had these clients attacked, within the threat, the "
    "prediction would have been the same",
}
WORLDS = {
    "honest": "compared with a world in which the attackers train on clean data and submit what they trained",
    "scaled": "compared with a world in which the attackers train on clean data and still multiply their update",
}
STATUSES = {
    "failed": "does not hold",
    "declared": "taken on trust",
    "held": "checked, holds",
}
"""How the outcome of a check is called, the worst first."""

SHOWN_RADII = 4


def summary(run: RunResult) -> list[str]:
    """Describe the run in a few sentences: training, attack, quality, certificates."""
    metrics = run.metrics
    ledger = run.ledger
    return [training(run), attack(run), *quality(metrics, ledger), *certificate_sentences(metrics)]


def training(run: RunResult) -> str:
    """Describe the training."""
    facts = run.ledger.facts
    groups = "" if facts.groups is None else f", in {facts.models} groups with a model each"
    sizes = run.metrics.partition.sizes
    held = f"{min(sizes):,}" if min(sizes) == max(sizes) else f"{min(sizes):,} to {max(sizes):,}"
    return (
        f"{count_text(facts.clients, 'client')} with {held} samples each trained the model “{facts.model}” for "
        f"{count_text(facts.rounds, 'round')}{groups}; it tells {facts.classes} classes apart."
    )


def attack(run: RunResult) -> str:
    """Describe the attackers, and their share of the weights."""
    facts = run.ledger.facts
    found = run.metrics.attackers
    if found is None:
        return "No client attacked this run."
    share = found.mean_weight_share
    weight = "" if share is None else f" Their share of the weights that reached the model was {percent(share)}."
    names = run.metrics.partition.clients
    known = [names[client] if names else client for client in found.clients]
    who = f"{count_text(len(found.clients), 'client')} ({first_few(known)})"
    return f"{who} attacked with “{facts.attack}” in {rounds(found.rounds)}.{weight}"


def quality(metrics: Metrics, ledger: Ledger) -> Iterator[str]:
    """Describe the accuracy of the model, and the success of a backdoor."""
    clean = ledger.facts.test_sets["clean"].samples
    yield f"The final model is right on {percent(metrics.accuracy)} of {clean:,} clean test samples."
    if (backdoor := metrics.backdoor) is not None:
        name = ledger.facts.class_names[backdoor.target]
        yield (
            f"The backdoor works on {percent(backdoor.success_rate)} of {backdoor.samples:,} backdoored samples, which "
            f"are then taken for class “{name}”; without the backdoor this happens to "
            f"{percent(backdoor.clean_rate)} of the samples of other classes."
        )


def certificate_sentences(metrics: Metrics) -> Iterator[str]:
    """Describe every certificate at its strongest level, and those that are refused."""
    proofs_first = sorted(metrics.curves, key=lambda curve: bool(curve.label))
    names = dict.fromkeys(curve.certificate for curve in proofs_first)
    for name in names:
        own = [curve for curve in metrics.curves if curve.certificate == name and curve.test_set == "clean"]
        if own:
            yield curve_sentence(min(own, key=lambda curve: list(LEVEL_WORDS).index(curve.level)))
    for name, reason in metrics.refused.items():
        yield f"Refused: {name}. {reason}."
    if not metrics.curves and not metrics.refused:
        yield "No certificate was asked for."


def curve_sentence(curve: Curve) -> str:
    """Describe a curve in one sentence."""
    told = [(at, value) for at, value in zip(curve.radii, curve.certified_accuracy, strict=True) if at > 0]
    values = [f"{percent(value)} up to {radius(at, curve.level)}" for at, value in told[:SHOWN_RADII]]
    much = ", ".join(values) or f"{percent(curve.certified_accuracy[0])} at radius 0"
    label = f" ({curve.label})" if curve.label else ""
    hangs = " It is conditional, see the audit." if curve.conditional else ""
    return f"Certificate “{curve.certificate}”{label}: right and certified are {much}; {basis(curve)}.{hangs}"


def basis(curve: Curve) -> str:
    """Describe what the numbers of a curve rest on, in a few words."""
    reading = f", read {' and '.join(curve.directions)}" if curve.directions else ""
    when = f", attacks in {curve.rounds}" if curve.rounds else ""
    return f"{curve.statement} statement{reading}, {curve.clean_world} clean world{when}"


def radius(value: float, level: str) -> str:
    """Write a radius with its unit."""
    if value == float("inf"):
        return "any change of poisoned inputs" if level == "feature" else "any number"
    if level == "client":
        return f"{value:g} malicious {'client' if value == 1 else 'clients'}"
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


def first_few(numbers: Sequence[object], most: int = 6) -> str:
    """Write some numbers or names, only the first if there are many.

    >>> first_few(range(10))
    '0, 1, 2, 3, 4, 5, ...'
    """
    return ", ".join(map(str, numbers[:most])) + (", ..." if len(numbers) > most else "")


def rounds(numbers: Sequence[int]) -> str:
    """Write rounds in a few words.

    >>> rounds([30]), rounds([3, 4, 5]), rounds([1, 7])
    ('round 30', 'rounds 3 to 5', 'rounds 1, 7')
    """
    if len(numbers) == 1:
        return f"round {numbers[0]}"
    if len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"rounds {numbers[0]} to {numbers[-1]}"
    return f"rounds {first_few(numbers)}"
