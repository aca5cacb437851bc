"""Hooks of a run.

A run makes its own pluggy manager and registers the plugin instances that its config names, if they carry methods
marked with `@crfl_core.hookimpl`. Installing a package therefore never changes a result. An implementation takes
any subset of a hook's arguments, by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from torch import Tensor

    from crfl_core.plugin_api.certificate import CertificateResult
    from crfl_core.records.ledger import ClientRows, RoundRecord
    from crfl_core.records.round import ClientUpdates, Round, RuleResult, State
    from crfl_core.records.run_context import RunContext
    from crfl_core.runs.results import RunResult

hookspec = pluggy.HookspecMarker("crfl")
hookimpl = pluggy.HookimplMarker("crfl")
"""Decorator of a plugin's method that implements the hook of the same name."""


@hookspec
def crfl_progress(phase: str, done: int, total: int) -> None:
    """Observe how far a phase other than training is.

    Before the rounds these are "data" and "feature maps", which are skipped if they are cached; after them "votes",
    "continuations", "certificates" and "figures". `total` is 0 if it is not known.
    """


@hookspec
def crfl_run_started(run: RunContext) -> None:
    """Observe that a run begins, or resumes after `run.resumed_from` rounds."""


@hookspec
def crfl_round_started(run: RunContext, current: Round) -> None:
    """Observe that a round begins.

    `current` says who takes part and which model is broadcast.
    """


@hookspec(firstresult=True)
def crfl_effective_weights(updates: ClientUpdates, aggregate: RuleResult) -> Tensor | None:
    """Return the weights p_i, (n,), for the round's record, or None.

    The record and the radius should use these weights. Return None to pass. The first answer counts; the weights that
    the aggregation chain reported come last. An answer must reconstruct the aggregate, `sum_i p_i u_i + offset`, or the
    run stops. A round whose weights were replaced counts as data-dependent; an answer that equals the chain's weights
    replaces nothing.
    """


@hookspec
def crfl_accept_round(run: RunContext, current: Round, candidate: Tensor, state: State) -> bool | None:
    """Accept (True) or reject (False) a round's clipped model, (P,).

    The model is the one before noise. None has no opinion. `state` is what the plugin itself returned as a step of this
    round's aggregation, empty for any other plugin. One rejection is enough. The round then continues from the model it
    was broadcast with, clipped and with fresh noise, and from the states that its aggregation started with.
    """


@hookspec
def crfl_round_finished(run: RunContext, record: RoundRecord, clients: ClientRows) -> None:
    """Observe the record of a round in the ledger.

    The plugin also sees what the server knows of each participant.
    """


@hookspec
def crfl_certified(run: RunContext, certified: CertificateResult) -> None:
    """Observe a certificate's guarantee at one level for one test set."""


@hookspec
def crfl_run_failed(run: RunContext, error: BaseException) -> None:
    """Observe that a run ends early, by an error or interrupt.

    What is on disk can be resumed.
    """


@hookspec
def crfl_run_finished(run: RunContext, result: RunResult) -> None:
    """Observe the finished run; everything is on disk."""
