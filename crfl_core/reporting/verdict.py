"""Verdict on a run: what it proves in one sentence, and which attack it saw. Every result begins with it."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from crfl_core.reporting.metrics import Attackers, Curve, Metrics

SAMPLED_VOTE_CHECKS = frozenset({"vote noise is secret", "groups are random subsets"})
"""Checks that only certificates have whose votes are sampled: they hold up to an error probability."""
NAMED_CLIENTS_CHECK = "only the named clients attack"
"""Check of certificates that count the clients of the threat only, not any clients."""
READINGS = {"backward": "this run", "forward": "attacks that did not happen"}
"""What a guarantee holds for, by the direction in which it may be read."""
CLEAN_WORLDS = {"honest": "all clients honest", "scaled": "attackers that scale clean updates"}
"""What an attacked run is compared with."""
MOST_NUMBERS = 6
"""Longer lists of clients or rounds without a pattern are shortened."""


class Claim(NamedTuple):
    """Claim of one curve: the share of test samples that are correct and certified, and against which attack."""

    share: float
    against: str
    curve: Curve


def run_verdict(metrics: Metrics, audit: Sequence[Mapping[str, Any]]) -> str:
    """Say what a run proves about the clean test set.

    The text has one or two sentences. `audit` is that of `audit.json`.
    """
    clients = len(metrics.partition.sizes)
    return verdict(metrics.curves, metrics.refused, audit, clients=clients, attackers=metrics.assumed_attackers)


def verdict(
    curves: Iterable[Curve],
    refused: Collection[str],
    audit: Sequence[Mapping[str, Any]],
    *,
    clients: int,
    attackers: int,
) -> str:
    """Say what is certified on the clean test set.

    The text has one or two sentences, about the certificate that proves most. The number of malicious clients is the
    one that the threat assumes, of `clients` in all. Proofs without conditions come first, then those against clients,
    then the largest share.
    """
    shown = [curve for curve in curves if curve.test_set == "clean"]
    proofs = [curve for curve in shown if not curve.label]
    if not proofs:
        return f"Not certified: {why_nothing(shown, refused)}."
    free = [curve for curve in proofs if not curve.conditional] or proofs
    attackers = max(1, attackers)
    named = {
        entry["certificate"]
        for entry in audit
        if any(check["name"] == NAMED_CLIENTS_CHECK for check in entry["checks"])
    }
    pools = {curve.certificate: "the named" if curve.certificate in named else str(clients) for curve in free}
    best = best_claim(free, attackers, pools)
    if best.share == 0.0:
        return nothing_against(free, attackers, pools)
    words = f"{percent(best.share)} correct {best.against}."
    if best.curve.conditional:
        return f"Certified under a condition: {words} Condition: {best.curve.conditional[0]}."
    checks: Sequence[Mapping[str, Any]] = next(
        (entry["checks"] for entry in audit if entry["certificate"] == best.curve.certificate), []
    )
    sampled = any(check["name"] in SAMPLED_VOTE_CHECKS for check in checks)
    start = "Certified, up to the error probability of its votes" if sampled else "Certified"
    return f"{start}: {words} {count_unchecked(best.curve, checks)}"


def why_nothing(curves: Iterable[Curve], refused: Collection[str]) -> str:
    """Say why nothing is proved.

    Certificates claim no proof, are refused, or were not asked for.
    """
    labels = dict.fromkeys(f"{curve.certificate} is a {curve.label}" for curve in curves)
    if labels:
        return "; ".join(labels)
    return "every certificate is refused" if refused else "the config asks for no certificate"


def best_claim(curves: Iterable[Curve], attackers: int, pools: Mapping[str, str]) -> Claim:
    """Return the strongest claim.

    A claim against clients comes first, then the one about the largest share. `pools` says of which clients each
    certificate counts attackers: of all of them, or of the named ones.
    """
    claims = [make_claim(curve, attackers, pools[curve.certificate]) for curve in curves]
    return max(claims, key=lambda claim: (claim.curve.level == "client", claim.share))


def make_claim(curve: Curve, attackers: int, pool: str) -> Claim:
    """Return what a curve says about this number of clients.

    The clients are malicious. The number may be the next larger one that the curve knows. If attacks in unknown rounds
    were asked as well, that answer counts: it covers more. At other levels, the claim is about the largest attack that
    half of the samples withstand.
    """
    if curve.level == "client":
        shares = curve.any_round_accuracy or curve.certified_accuracy
        points = [point for point in zip(curve.radii, shares, strict=True) if point[0] >= attackers]
        number, share = points[0] if points else (attackers, 0.0)
        return Claim(share, f"whatever {any_clients(curve, int(number), pool)}", curve)
    radius, share = typical_point(curve)
    if curve.level == "sample":
        return Claim(share, f"if the assumed attackers poison at most {percent(radius)} of their samples", curve)
    if curve.level == "feature":
        size = "however far" if math.isinf(radius) else f"by at most {radius:g}"
        return Claim(share, f"if the assumed attackers move poisoned inputs {size}", curve)
    trigger = "any trigger" if math.isinf(radius) else f"any trigger of norm {radius:g}"
    return Claim(share, f"whatever {any_clients(curve, attackers, pool)}, and with {trigger} on the input", curve)


def any_clients(curve: Curve, number: int, pool: str) -> str:
    """Say which clients may do anything, and when.

    The verb is "did" if the statement is only about attackers of this run.
    """
    verb = ("does" if number == 1 else "do") if "forward" in curve.directions else "did"
    return f"any {number} of {pool} clients {verb}, {attacked_rounds(curve)}"


def nothing_against(curves: Sequence[Curve], attackers: int, pools: Mapping[str, str]) -> str:
    """Say that no prediction withstands the assumed attackers.

    Also say how many fewer leave a share.
    """
    pool = pools[best_claim(curves, attackers, pools).curve.certificate]
    start = f"Not certified: no correct prediction withstands any {attackers} of {pool} clients"
    for number in range(attackers - 1, 0, -1):
        best = best_claim(curves, number, pools)
        if best.share > 0.0:
            return f"{start}; {percent(best.share)} are correct {best.against}."
    return f"{start}."


def typical_point(curve: Curve) -> tuple[float, float]:
    """Return the largest radius at which half of the samples hold.

    Those samples are certified and correct. If fewer than half are so at every radius, return the
    smallest radius above 0.
    """
    points = [*zip(curve.radii, curve.certified_accuracy, strict=True)]
    half = [point for point in points if point[1] >= 0.5]
    return half[-1] if half else next((point for point in points if point[0] > 0), points[0])


def attacked_rounds(curve: Curve) -> str:
    """Say in which rounds the attackers of a curve may act."""
    if curve.any_round_accuracy:
        return "in any one round" if curve.rounds.startswith("round ") else "in any rounds, as many as were attacked"
    return f"in {curve.rounds}" if curve.rounds else "in the attacked rounds"


def count_unchecked(curve: Curve, checks: Iterable[Mapping[str, Any]]) -> str:
    """Count the assumptions of a curve that nothing checks, as a sentence."""
    unchecked = {
        check["name"]
        for check in checks
        if check["status"] == "declared"
        and check["level"] in (None, curve.level)
        and check["direction"] in (None, *curve.directions)
    }
    if not unchecked:
        return "All assumptions are checked."
    return "1 assumption is not checked." if len(unchecked) == 1 else f"{len(unchecked)} assumptions are not checked."


def statement_text(curve: Curve) -> str:
    """Say what a guarantee holds for.

    Also say what the attacked run is compared with.
    """
    holds = " and for ".join(READINGS.get(direction, direction) for direction in curve.directions)
    reading = f"holds for {holds}, " if holds else ""
    return f"{curve.statement}; {reading}compared with {CLEAN_WORLDS.get(curve.clean_world, curve.clean_world)}"


def attack_text(attackers: Attackers | None, names: Sequence[str] = ()) -> str:
    """Say which attack ran.

    The text names the attackers and the rounds, and by how much updates were scaled. `names` are those of all clients,
    if they have names.
    """
    if attackers is None:
        return "no client attacked"
    found: Sequence[int | str] = [names[client] for client in attackers.clients] if names else attackers.clients
    count = len(found)
    who = f"{count} attacker{'' if count == 1 else 's'} ({numbers_text('client', found)})"
    scale = attackers.scale
    words = "" if scale is None else f", scale {scale:g}" if not isinstance(scale, str) else f", scale {scale!r}"
    kind = f"{attackers.attack}: " if attackers.attack else ""
    return f"{kind}{who}, {numbers_text('round', attackers.rounds)}{words}"


def numbers_text(word: str, numbers: Sequence[int | str]) -> str:
    """Write ids of clients or rounds in a few words.

    >>> numbers_text("round", [1, 2, 3]), numbers_text("client", [4]), numbers_text("round", [2, 4])
    ('rounds 1-3', 'client 4', 'rounds 2, 4')
    """
    if len(numbers) < 2:
        return f"{word} {numbers[0]}" if numbers else f"no {word}"
    whole = [number for number in numbers if isinstance(number, int)]
    if len(whole) == len(numbers) and all(after == before + 1 for before, after in pairwise(whole)):
        return f"{word}s {numbers[0]}-{numbers[-1]}"
    if len(numbers) > MOST_NUMBERS:
        return f"{word}s {numbers[0]}, {numbers[1]}, ..., {numbers[-1]}"
    return f"{word}s {', '.join(map(str, numbers))}"


def percent(share: float) -> str:
    """Write a share in percent with one digit, as tables have it.

    >>> percent(0.8861), percent(1.0)
    ('88.6 %', '100.0 %')
    """
    return f"{100.0 * share:.1f} %"
