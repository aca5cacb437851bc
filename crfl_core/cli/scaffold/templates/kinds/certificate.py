"""A certificate for crfl."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from crfl_core.extend import (
    ABSTAIN,
    Certificate,
    Check,
    DriftBound,
    Guarantee,
    Ledger,
    Level,
    LogitVotes,
    Threat,
    VoteRequest,
    Votes,
    VoteSettings,
    assumption_checks,
    bias_input,
    formulas,
    margin_thresholds,
)


class MyPlugin(Certificate):
    """Number of arbitrary clients in the final round that cannot change the prediction of a linear model.

    Until the final round the runs with and without the attack are the same. There a client of weight p whose update is
    capped at U moves the model by at most `2 p U`, which the clip does not increase, and a linear model that moves by D
    keeps every prediction whose margin is above `sqrt(2) ||x|| D`.
    """

    levels_offered: ClassVar[tuple[Level, ...]] = ("client",)
    statement: ClassVar = "pathwise"

    def stages_to_add(self, cap_updates: bool | None) -> tuple[Mapping[str, Any], ...]:  # noqa: ARG002 - always
        """Return the cap that the proof uses, which leaves honest clients as they are."""
        return ({"type": "update-cap", "bound": "known"},)

    def request(self, ledger: Ledger, threat: Threat, settings: VoteSettings) -> VoteRequest:  # noqa: ARG002
        """Ask for the logits of the final model on every test set."""
        return VoteRequest("logits")

    def audit(self, ledger: Ledger, threat: Threat) -> tuple[Check, ...]:
        """Check every assumption of the proof. A failed check refuses the certificate and says why."""
        facts, final = ledger.facts, ledger.rounds[-1]
        clients = ledger.clients.of_round(facts.rounds)
        independent = final.depends != "all" and final.weights_from == "chain" and not facts.rejects
        keeps = assumption_checks.build_check(
            "bad updates keep their weight",
            facts.bad_update == "zero",
            f"server.bad_update = {facts.bad_update!r}",
            "'zero'",
            "set server.bad_update = 'zero'",
        )
        return (
            assumption_checks.build_check(
                "linear model",
                facts.model_facts.linear,
                f"model {facts.model!r}",
                "logits that are linear in the parameters",
                "use model.type = 'softmax'",
            ),
            assumption_checks.build_check(
                "attacked rounds",
                threat.rounds == (facts.rounds,),
                f"rounds {list(threat.rounds)} of 1..{facts.rounds}",
                "the final round and no other",
                f"set threat.rounds = [{facts.rounds}]",
            ),
            assumption_checks.build_check(
                "weights in the final round",
                independent and bool((clients.weight_bound >= 0).all()),
                f"depend on {final.depends!r}",
                "weights that attackers cannot move",
                "use fedavg, and no plugin that judges rounds",
            ),
            assumption_checks.build_check(
                "capped updates",
                bool(np.isfinite(clients.cap).all()),
                f"largest cap {clients.cap.max():.4g}",
                "a finite cap on every update",
                "leave server.cap_updates unset",
            ),
            # Attackers of this run that were dropped would show in its weights; those of another would not.
            assumption_checks.restrict_check(keeps, direction="forward"),
        )

    def certify(self, ledger: Ledger, votes: Votes, threat: Threat, level: Level) -> Guarantee:  # noqa: ARG002
        """Return, for every sample, the largest number of the worst clients that the margin outweighs."""
        logits, norms = votes.expect(LogitVotes).logits, np.hypot(votes.input_norms, bias_input(ledger))
        clients = ledger.clients.of_round(ledger.facts.rounds)
        worst_first = np.sort(2.0 * clients.weight_bound * clients.cap)[::-1]
        costs = np.concatenate([[0.0], np.cumsum(worst_first)])
        rounding = DriftBound(ledger, threat, ledger.facts.rounds).rounding  # what floating-point arithmetic adds
        drift = formulas.largest_attack(
            margin_thresholds(ledger, logits, norms), rounding=rounding, terms=ledger.facts.clients
        )
        count = np.asarray(formulas.client_count(drift, costs))
        with np.errstate(divide="ignore", invalid="ignore"):
            log_count = np.log(count)
        unknown = np.full(len(count), np.nan)
        return Guarantee(
            prediction=np.where(np.isnan(count), ABSTAIN, logits.argmax(axis=1)),
            radius=count,
            log_radius=log_count,
            p_a=unknown,
            p_b=unknown,
            count=count,
        )
