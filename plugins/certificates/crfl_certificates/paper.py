"""The certificate of the CRFL paper, for comparison with its published numbers."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from crfl_core.extend import (
    ABSTAIN,
    Certificate,
    Check,
    Guarantee,
    Ledger,
    Level,
    Threat,
    VoteRequest,
    Votes,
    VoteSettings,
    formulas,
    input_bound,
    smoothness,
)

ROUNDING = 1e-6
"""Allowance for norms that were measured in single precision."""
LEMMA_NORM = 2.0
"""Largest input norm, bias included, for which the paper's Lipschitz constant is true."""


class Paper(Certificate):
    """Corollary 1 of the CRFL paper (Xie et al., 2021): a reproduction, not a proof.

    The feature-level radius from a KL divergence between global models and Hoeffding bounds on the votes of one run.
    The theorem speaks about all runs, ignores label flips, and its Lipschitz constant holds for small inputs only.
    """

    statement: ClassVar = "marginal"
    sound: ClassVar = False
    label: ClassVar = "reproduction, not a proof"

    def request(self, ledger: Ledger, threat: Threat, settings: VoteSettings) -> VoteRequest:  # noqa: ARG002
        """M noisy copies of the final model."""
        noise = ledger.facts.test_noise_std if settings.noise_std is None else settings.noise_std
        return VoteRequest("monte-carlo", models=settings.models, noise_std=noise)

    def clean_world(self, threat: Threat) -> str:  # noqa: ARG002
        """The paper's proof lets attackers scale their clean updates, too."""
        return "scaled"

    def audit(self, ledger: Ledger, threat: Threat) -> tuple[Check, ...]:
        """What Corollary 1 needs, and what it passes over."""
        facts = ledger.facts
        convex = facts.model_facts.linear and facts.model_facts.convex
        rounds = [number for number in threat.rounds if number <= facts.rounds]
        single = len(threat.rounds) == 1 and len(rounds) == 1
        noisy = not single or noise_of(ledger, rounds[0]) > 0
        depends = {ledger.round(number).depends for number in rounds} | ({"all"} if facts.rejects else set())
        rate, limit = float(ledger.clients.learning_rate.max()), 1.0 / smoothness(ledger)
        norm = input_bound(ledger)
        return (
            Check(
                "softmax regression",
                "held" if convex else "failed",
                measured=f"model {facts.model!r}",
                required="a convex loss, linear in the parameters",
                remedy="" if convex else "use model.type = 'softmax'",
            ),
            Check(
                "one attacked round",
                "held" if single else "failed",
                measured=f"rounds {list(threat.rounds)} of 1..{facts.rounds}",
                required="exactly one",
                remedy="" if single else "set threat.rounds to one round",
            ),
            Check(
                "feature maps are Lipschitz",
                "held" if facts.feature_lipschitz is not None else "failed",
                measured="no constant" if facts.feature_lipschitz is None else f"constant {facts.feature_lipschitz:g}",
                required="a Lipschitz constant, by which the radius is divided",
                remedy="" if facts.feature_lipschitz is not None else "use 'unit-ball' instead of 'unit-sphere'",
                level="feature",
            ),
            Check(
                "noise in the attacked round",
                "held" if noisy else "failed",
                measured="above 0" if noisy else "0",
                required="server.noise_std > 0",
                remedy="" if noisy else "set server.noise_std above 0",
            ),
            Check(
                "fixed aggregation weights",
                "failed" if "all" in depends else "held",
                measured=" and ".join(sorted(depends)) or "none",
                required="fixed, or capped one by one",
                remedy="the weights differ between the two worlds; use fedavg",
                refuses=False,
            ),
            Check(
                "input norm",
                "held" if norm <= LEMMA_NORM else "failed",
                measured=f"{norm:.3g}",
                required=f"at most {LEMMA_NORM:g}",
                remedy="set model.features = { type = 'unit-ball' }",
                refuses=False,
            ),
            Check(
                "step size",
                "held" if rate <= limit * (1 + ROUNDING) else "failed",
                measured=f"{rate:g}",
                required=f"at most 1/beta = {limit:.3g}",
                remedy="lower training.learning_rate, or the norms of the inputs",
                refuses=False,
            ),
            Check(
                "labels unchanged",
                "held" if threat.poison == "features" else "failed",
                measured=f"poison {threat.poison!r}",
                required="'features'",
                remedy="the radius does not cover label flips",
                refuses=False,
            ),
            Check("votes of one run stand for all runs", "declared"),
        )

    def certify(self, ledger: Ledger, votes: Votes, threat: Threat, level: Level) -> Guarantee:  # noqa: ARG002
        """Algorithm 2: bounds on the votes, abstention, radius."""
        assert votes.counts is not None
        first, p_a, p_b = formulas.hoeffding(votes.counts, votes.settings.alpha)
        (attacked,) = threat.rounds
        later = ledger.rounds[attacked:]
        noises = [record.noise_std for record in later[:-1]] + [votes.request.noise_std] * bool(later)
        final = attacked == ledger.facts.rounds
        log_radii = formulas.log_radius(
            formulas.kl_budget(p_a, p_b),
            noise_std=votes.request.noise_std if final else ledger.round(attacked).noise_std,
            lipschitz=formulas.gradient_lipschitz(ledger.round(attacked).clip_norm),
            strengths=strengths(ledger, threat, attacked),
            contraction=formulas.log_contraction([record.clip_norm for record in later], noises),
        )
        assert ledger.facts.feature_lipschitz is not None
        log_radii = log_radii - np.log(ledger.facts.feature_lipschitz)
        certain = p_a > p_b
        with np.errstate(over="ignore"):
            radii = np.exp(log_radii)
        return Guarantee(
            prediction=np.where(certain, first, ABSTAIN),
            radius=np.where(certain, radii, np.nan),
            log_radius=np.where(certain, log_radii, np.nan),
            p_a=p_a,
            p_b=p_b,
        )


def noise_of(ledger: Ledger, number: int) -> float:
    """The noise on the model of a round; in the final one it is the test noise."""
    return ledger.facts.test_noise_std if number == ledger.facts.rounds else ledger.round(number).noise_std


def strengths(ledger: Ledger, threat: Threat, attacked: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """`S_i = p_i gamma eta_i tau_i q/n` of the attackers: the named ones, or the worst if only a number is assumed."""
    clients = ledger.clients.of_round(attacked)
    each = clients.weight_bound * threat.scale * clients.learning_rate * clients.steps * threat.poison_ratio
    if isinstance(threat.clients, int):
        return np.sort(each)[::-1][: threat.clients]
    return each[np.isin(clients.client, threat.clients)]
