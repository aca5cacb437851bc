"""The certificate of the CRFL paper, for comparison with its published numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from crfl_certificates.capped import UPDATE_CAP
from crfl_core.extend import (
    ABSTAIN,
    Certificate,
    Check,
    CountVotes,
    Guarantee,
    Ledger,
    Level,
    Threat,
    VoteRequest,
    Votes,
    VoteSettings,
    assumption_checks,
    formulas,
    input_bound,
    smoothness,
)

Array = NDArray[np.float64]
SINGLE_PRECISION_TOLERANCE = 1e-6
"""Allowance for norms that were measured in single precision."""
LEMMA_NORM = 2.0
"""Largest input norm, bias included, for which the paper's Lipschitz constant is true."""


class Paper(Certificate):
    """Corollary 1 of the CRFL paper (Xie et al., 2021): a reproduction, not a proof.

    The feature-level radius from a KL divergence between global models and Hoeffding bounds on the votes of one run.
    Several attacked rounds add up, which the paper only remarks on.
    The theorem speaks about all runs, ignores label flips, and its Lipschitz constant holds for small inputs only.
    """

    statement: ClassVar = "marginal"
    sound: ClassVar = False
    label: ClassVar = "reproduction, not a proof"

    attacked_clip_norm: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="rho of the attacked round in L_Z; unset: that of the server. The authors' code has a fixed one, "
        "3 on MNIST",
    )
    abstains: bool = Field(
        True,
        description="whether nothing is said where p_A <= p_B; false: the squared difference gives a radius there as "
        "well, as in the authors' code",
    )

    def request(self, ledger: Ledger, threat: Threat, settings: VoteSettings) -> VoteRequest:  # noqa: ARG002
        """Request M noisy copies of the final model."""
        noise = ledger.facts.test_noise_std if settings.noise_std is None else settings.noise_std
        return VoteRequest("monte-carlo", models=settings.models, noise_std=noise)

    def clean_world(self, threat: Threat) -> str:  # noqa: ARG002
        """Return "scaled": in the paper's proof, attackers scale their clean updates, too."""
        return "scaled"

    def round_scope(self) -> Literal["any"]:
        """Return "any": of unknown rounds, the worst count."""
        return "any"

    def stages_to_add(self, cap_updates: bool | None) -> tuple[Mapping[str, Any], ...]:
        """Return the update cap only if the config asks for it.

        The paper's server has no update cap.
        """
        return (UPDATE_CAP,) if cap_updates else ()

    def audit(self, ledger: Ledger, threat: Threat) -> tuple[Check, ...]:
        """Check what Corollary 1 needs, and what it passes over."""
        return (
            *essential_checks(ledger, threat),
            *(replace(check, refuses=False) for check in conditional_checks(ledger, threat)),
            assumption_checks.check_vote_secrecy(ledger),
            Check("votes of one run stand for all runs", "declared"),
        )

    def certify(self, ledger: Ledger, votes: Votes, threat: Threat, level: Level) -> Guarantee:  # noqa: ARG002
        """Run the paper's Algorithm 2: bound the votes, abstain, compute the radius."""
        first, p_a, p_b = formulas.hoeffding(votes.expect(CountVotes).counts, votes.settings.alpha)
        budget = self._budget(p_a, p_b)
        noise_std = votes.request.noise_std
        each = [self._round_radius(ledger, threat, number, budget, noise_std) for number in threat.rounds]
        # Of unknown attacked rounds, the worst count.
        log_radii = formulas.joint_log_radius(np.sort(each, axis=0)[: threat.attacked_rounds])
        certain = p_a > p_b if self.abstains else np.ones_like(p_a, bool)
        with np.errstate(over="ignore"):
            radii = np.exp(log_radii)
        return Guarantee(
            prediction=np.where(certain, first, ABSTAIN),
            radius=np.where(certain, radii, np.nan),
            log_radius=np.where(certain, log_radii, np.nan),
            p_a=p_a,
            p_b=p_b,
        )

    def _budget(self, p_a: Array, p_b: Array) -> Array:
        """Return the divergence below which a vote cannot change.

        Without abstention, the square of any difference counts.
        """
        if self.abstains:
            return formulas.kl_budget(p_a, p_b)
        return formulas.kl_budget(np.maximum(p_a, p_b), np.minimum(p_a, p_b))

    def _round_radius(self, ledger: Ledger, threat: Threat, attacked: int, budget: Array, test_noise: float) -> Array:
        """Return the log radii for an attack in round `attacked`.

        Other attacked rounds do not contract.
        """
        final = attacked == ledger.facts.rounds
        others = set(threat.rounds) if threat.attacked_rounds > 1 else set()
        later = [record for record in ledger.rounds[attacked:] if record.round not in others]
        noises = [test_noise if record.round == ledger.facts.rounds else record.noise_std for record in later]
        log_radii = formulas.log_radius(
            budget,
            noise_std=test_noise if final else ledger.round(attacked).noise_std,
            lipschitz=formulas.gradient_lipschitz(self.attacked_clip_norm or ledger.round(attacked).clip_norm),
            strengths=strengths(ledger, threat, attacked),
            contraction=formulas.log_contraction([record.clip_norm for record in later], noises),
        )
        assert ledger.facts.feature_lipschitz is not None
        return np.asarray(log_radii - np.log(ledger.facts.feature_lipschitz))


def essential_checks(ledger: Ledger, threat: Threat) -> tuple[Check, ...]:
    """Check what the formula needs: without these there is no number."""
    facts = ledger.facts
    rounds = existing_rounds(ledger, threat)
    exist = 0 < len(rounds) == len(threat.rounds)
    noisy = all(noise_std_of(ledger, number) > 0 for number in rounds)
    weighed = not any(ledger.round(number).has_unweighted_part for number in rounds)
    stepping = assumption_checks.optimiser_objection(ledger, rounds)
    return (
        replace(assumption_checks.check_softmax_regression(ledger), name="softmax regression"),
        assumption_checks.check_objective(ledger),
        assumption_checks.build_check(
            "attacked rounds exist",
            exist,
            f"{threat.rounds_text} of 1..{facts.rounds}",
            f"rounds of 1..{facts.rounds}",
            "set threat.rounds to some of them",
        ),
        assumption_checks.check_feature_maps(ledger),
        assumption_checks.build_check(
            "noise in the attacked round",
            noisy,
            "above 0" if noisy else "0",
            "server.noise_std > 0",
            "set server.noise_std above 0",
        ),
        assumption_checks.build_check(
            "every part of the aggregate has a client's weight",
            weighed and not stepping,
            stepping
            or ("they do" if weighed else "a part of the aggregate depends on the updates, in no client's weight"),
            "an aggregate that is a weighted sum of the updates",
            assumption_checks.PLAIN_STEP_REMEDY if stepping else "use fedavg",
        ),
    )


def conditional_checks(ledger: Ledger, threat: Threat) -> tuple[Check, ...]:
    """Check the conditions that the paper does not state.

    Where one fails, the number is conditional.
    """
    rounds = existing_rounds(ledger, threat)
    depends = {ledger.round(number).depends for number in rounds} | ({"all"} if ledger.facts.rejects else set())
    rate = float(ledger.clients.learning_rate.max())
    limit = 1.0 / smoothness(ledger)
    norm = input_bound(ledger)
    return (
        assumption_checks.build_check(
            "one attacked round",
            threat.attacked_rounds == 1,
            threat.rounds_text,
            "exactly one",
            "the divergences of the rounds are added, as the paper's remark on attacks of a fixed frequency implies",
        ),
        assumption_checks.build_check(
            "fixed aggregation weights",
            "all" not in depends,
            " and ".join(sorted(depends)) or "none",
            "fixed, or capped one by one",
            "the weights differ between the two worlds; use fedavg",
        ),
        assumption_checks.build_check(
            "input norm",
            norm <= LEMMA_NORM * (1 + SINGLE_PRECISION_TOLERANCE),
            f"{norm:.3g}",
            f"at most {LEMMA_NORM:g}",
            "set model.features = { type = 'unit-ball' }",
        ),
        assumption_checks.build_check(
            "step size",
            rate <= limit * (1 + SINGLE_PRECISION_TOLERANCE),
            f"{rate:g}",
            f"at most 1/beta = {limit:.3g}",
            "lower training.learning_rate, or the norms of the inputs",
        ),
        assumption_checks.build_check(
            "labels unchanged",
            threat.poison == "features",
            f"poison {threat.poison!r}",
            "'features'",
            "the radius does not cover label flips",
        ),
    )


def existing_rounds(ledger: Ledger, threat: Threat) -> list[int]:
    """Return the attacked rounds that exist."""
    return [number for number in threat.rounds if number <= ledger.facts.rounds]


def noise_std_of(ledger: Ledger, number: int) -> float:
    """Return the noise std of a round's model.

    In the final round this is the test noise.
    """
    return ledger.facts.test_noise_std if number == ledger.facts.rounds else ledger.round(number).noise_std


def strengths(ledger: Ledger, threat: Threat, attacked: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return `S_i = p_i gamma eta_i tau_i q/n` of the attackers.

    These are the named attackers or the worst ones.
    """
    clients = ledger.clients.of_round(attacked)
    each = clients.weight_bound * threat.scale * clients.learning_rate * clients.steps * threat.poison_ratio
    if isinstance(threat.clients, int):
        return np.sort(each)[::-1][: threat.clients]
    return each[np.isin(clients.client, threat.clients)]
