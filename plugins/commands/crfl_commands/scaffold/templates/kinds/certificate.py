"""A certificate for crfl."""

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
)


class MyPlugin(Certificate):
    """Arbitrary clients in the final round: so many could not have changed the prediction of a linear model.

    Until the final round the runs with and without the attack are the same. There a client of weight p whose update is
    capped at U moves the model by at most `2 p U`, which the clip does not increase, and a linear model that moves by D
    keeps every prediction whose margin is above `sqrt(2) ||x|| D`.
    """

    levels_offered: ClassVar[tuple[Level, ...]] = ("client",)
    statement: ClassVar = "pathwise"

    def request(self, ledger: Ledger, threat: Threat, settings: VoteSettings) -> VoteRequest:  # noqa: ARG002
        """The logits of the final model on every test set."""
        return VoteRequest("logits")

    def audit(self, ledger: Ledger, threat: Threat) -> tuple[Check, ...]:
        """Everything that the proof in the docstring uses. What fails refuses the certificate and says why."""
        facts, final = ledger.facts, ledger.rounds[-1]
        clients = ledger.clients.of_round(facts.rounds)
        independent = final.depends != "all" and final.weights_from == "chain" and not facts.rejects
        return (
            check(
                "linear model",
                facts.model_facts.linear,
                f"model {facts.model!r}",
                "logits that are linear in the parameters",
                "use model.type = 'softmax'",
            ),
            check(
                "attacked rounds",
                threat.rounds == (facts.rounds,),
                f"rounds {list(threat.rounds)} of 1..{facts.rounds}",
                "the final round and no other",
                f"set threat.rounds = [{facts.rounds}]",
            ),
            check(
                "weights in the final round",
                independent and bool((clients.weight_bound >= 0).all()),
                f"depend on {final.depends!r}",
                "weights that attackers cannot move",
                "use fedavg, and no plugin that judges rounds",
            ),
            check(
                "capped updates",
                bool(np.isfinite(clients.cap).all()),
                f"largest cap {clients.cap.max():.4g}",
                "a finite cap on every update",
                "set server.cap_updates = true",
            ),
        )

    def certify(self, ledger: Ledger, votes: Votes, threat: Threat, level: Level) -> Guarantee:  # noqa: ARG002
        """For all samples at once: the largest number of the worst clients that the margin outweighs."""
        assert votes.logits is not None
        bias = 1.0 if ledger.facts.model_facts.bias else 0.0
        threshold = formulas.margin_threshold(votes.logits, np.hypot(votes.input_norms, bias))
        clients = ledger.clients.of_round(ledger.facts.rounds)
        worst_first = np.sort(2.0 * clients.weight_bound * clients.cap)[::-1]
        costs = np.concatenate([[0.0], np.cumsum(worst_first)])
        count = np.asarray(formulas.client_count(formulas.certified_size(threshold), costs))
        with np.errstate(divide="ignore", invalid="ignore"):
            log_count = np.log(count)
        unknown = np.full(len(count), np.nan)
        return Guarantee(
            prediction=np.where(np.isnan(count), ABSTAIN, votes.logits.argmax(axis=1)),
            radius=count,
            log_radius=log_count,
            p_a=unknown,
            p_b=unknown,
            count=count,
        )


def check(name: str, holds: bool, measured: str, required: str, remedy: str) -> Check:
    """An assumption that either holds or refuses the certificate."""
    return Check(name, "held" if holds else "failed", measured, required, "" if holds else remedy)
