"""Checks of the batch-spectrum rule and of the ball rule: docs/certificates/every-round.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

import crfl_core.certification.formulas as formulas
from crfl_core.certification import rounding_error
from crfl_core.certification.assumption_checks import build_check, restrict_check
from crfl_core.certification.contraction import BALL_ROUNDING_SLACK, has_honest_cap, input_bound
from crfl_core.plugin_api.certificate import Check, Level
from crfl_core.records.measurements import precision

if TYPE_CHECKING:
    from crfl_core.records.ledger import BallFacts, ClientColumns, Ledger, TrainingFacts
    from crfl_core.records.threat import Threat

SCALED_BATCHES_WARNING_SHARE = 0.5
"""Share of scaled batches above which a limit is called too small."""

LEVELS_WITHOUT_BALL_RULE: tuple[Level, ...] = ("feature", "sample")


class ScaledBatches(NamedTuple):
    """Count of honest batches and scaled ones, the smallest factor, and the largest L_s and F_s."""

    batches: int
    scaled: int
    factor: float
    spectrum: float
    start_gradient: float

    def describe(self, facts: TrainingFacts, start_limit: float | None) -> str:
        """Describe the batches in one sentence.

        `start_limit` is F, if the ball rule is used.
        """
        limit = f"L = {facts.spectrum:g}" + ("" if start_limit is None else f" and F = {start_limit:g}")
        if not self.scaled:
            return f"{limit}: none of {self.batches} honest batches was scaled, the largest L_s is {self.spectrum:.4g}"
        enough = max(facts.spectrum or 0.0, self.spectrum)
        instead = f"L = {enough:.4g}" + (
            "" if start_limit is None else f" and F = {max(start_limit, self.start_gradient):.4g}"
        )
        return (
            f"{limit}: {self.scaled} of {self.batches} honest batches were scaled, by {self.factor:.3g} at least; "
            f"{instead} would scale none"
        )


def count_scaled_batches(rows: ClientColumns) -> ScaledBatches:
    """Count how many batches of honest clients the rule scaled."""
    honest = rows.take(~rows.attacking)
    return ScaledBatches(
        int(honest.steps.sum()),
        int(honest.scaled_batches.sum()),
        float(honest.batch_factor.min(initial=1.0)),
        float(honest.spectrum.max(initial=0.0)),
        float(honest.start_gradient.max(initial=0.0)),
    )


def spectrum_warning(facts: TrainingFacts, rows: ClientColumns, start_limit: float | None) -> str:
    """Warn of a limit so small that most batches are scaled.

    Empty if the limit is not that small.
    """
    if facts.spectrum is None:
        return ""
    found = count_scaled_batches(rows)
    if found.scaled <= SCALED_BATCHES_WARNING_SHARE * found.batches:
        return ""
    return f"training.spectrum scales most batches, so models learn slowly: {found.describe(facts, start_limit)}"


def spectrum_checks(ledger: Ledger, threat: Threat) -> tuple[Check, ...]:
    """Check the batch-spectrum rule and the ball rule.

    A run without these rules gets no checks. Certificates that rest on `update_bound` or `smoothness` need these
    checks.
    """
    facts = ledger.facts.training
    if facts.spectrum is None:
        return ()
    start_limit = None if facts.ball is None else facts.ball.start_limit
    found = count_scaled_batches(ledger.clients).describe(facts, start_limit)
    scaled = Check("honest clients scale their batches", "held", found, "a client that does not is an arbitrary client")
    return (scaled,) if facts.ball is None else (scaled, *ball_checks(ledger, threat, facts.ball, facts.spectrum))


def ball_checks(ledger: Ledger, threat: Threat, ball: BallFacts, limit: float) -> tuple[Check, ...]:
    """Check that models of both worlds stay in the ball.

    Inside it, gradients and curvature are bounded. Poisoned data change factors without a bound, so there are no
    feature and sample levels.
    """
    problem, remedy = find_ball_problem(ledger, threat, ball, limit)
    inside = build_check(
        "models stay in the ball",
        not problem,
        problem
        or f"kappa = {ball.gradient_bound:.4g}, radius {ball.radius:.4g}, farthest {largest_start_norm(ledger):.4g}",
        "capped messages, no training noise, bounded inputs",
        remedy,
    )
    if not problem and not rounding_error.is_proved(ledger):
        inside = Check(inside.name, "declared", f"{inside.measured}, in single precision", inside.required)
    return inside, *(restrict_check(check_ball_rule_level(level), level=level) for level in LEVELS_WITHOUT_BALL_RULE)


def check_ball_rule_level(level: str) -> Check:
    """Refuse a level below clients.

    Poisoned data may change F_s without a bound.
    """
    name = f"the ball rule has no {level} level"
    return build_check(
        name, False, "factors depend on labels", "the client level", "use that level, or the spectrum rule"
    )


def find_ball_problem(ledger: Ledger, threat: Threat, ball: BallFacts, limit: float) -> tuple[str, str]:
    """Find why a model of some world may leave the ball.

    Return the reason and the remedy; both are empty if none can.
    """
    rows = ledger.clients
    capped = "set server.cap_updates = true"
    attacked = rows.take(np.isin(rows.round, threat.rounds))
    pulled = np.bincount(rows.round, weights=rows.weight_bound * (1.0 - rows.retention))
    if any(record.noise_std > 0 for record in ledger.rounds):
        return "training noise", "set server.noise_std = 0"
    if ledger.rounds[0].start_norm > ball.radius:
        return f"a start model of norm {ledger.rounds[0].start_norm:.4g}", "set model.start = 'zeros'"
    if not has_honest_cap(ledger, attacked).all():
        return "attackers whose messages are not capped at what is honest", capped
    if largest_start_norm(ledger) > ball.radius * (1.0 + BALL_ROUNDING_SLACK):
        return f"a model of norm {largest_start_norm(ledger):.4g}", capped
    if input_bound(ledger) > ball.input_bound:
        return f"an input of norm {input_bound(ledger):.6g}", "mend the feature map that promises less"
    if (rows.weight_decay != ball.weight_decay).any() or pulled.max() > 1.0:
        return "weights or decays of other rounds", "use a rule whose weights sum to 1"
    if threat.clean_world != "honest":
        return "the scaled clean world", "set threat.clean_world = 'honest'"
    error = ball_rounding_error(ledger, ball)
    facts = ledger.facts
    room = formulas.ball_room(
        ball.gradient_bound, ball.start_limit, limit, ball.weight_decay, ball.input_bound, facts.classes
    )
    if error > BALL_ROUNDING_SLACK * ball.radius or limit / 2.0 * error > room:
        return f"rounding of {error:.2g}, for which gradients leave {float(room):.2g}", "raise training.weight_decay"
    return "", ""


def largest_start_norm(ledger: Ledger) -> float:
    """Return the largest norm of a broadcast model."""
    return max(record.start_norm for record in ledger.rounds)


def ball_rounding_error(ledger: Ledger, ball: BallFacts) -> float:
    """Bound how far rounding carries a model out of the ball.

    The bound is for all rounds together.
    """
    starts = np.full(ledger.facts.rounds, ball.radius * (1.0 + BALL_ROUNDING_SLACK))
    found = rounding_error.rounding_of_rounds(ledger, starts, input_bound(ledger), 1.0)
    caps = 4.0 * precision(ledger.facts) * float(ledger.clients.update_bound.max())
    return float(found.error.sum() + ledger.facts.rounds * caps) if rounding_error.is_proved(ledger) else 0.0
