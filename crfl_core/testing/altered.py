"""Votes and ledgers that differ from those of a finished run in one thing."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import singledispatch
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfl_core.records.ledger import ClientColumns, Ledger, ModelFacts
from crfl_core.records.votes import CountVotes, ExactVotes, GroupVotes, LogitVotes, Votes


@singledispatch
def surer(votes: Votes) -> Votes:
    """Votes that leave less doubt about the same first class."""
    raise NotImplementedError(type(votes).__name__)


@surer.register
def _(votes: LogitVotes) -> Votes:
    return replace(votes, logits=2.0 * votes.logits)


@surer.register
def _(votes: CountVotes) -> Votes:
    chosen = votes.selection if votes.request.selection_models else votes.counts
    winners = np.eye(chosen.shape[1], dtype=np.int64)[chosen.argmax(1)]
    totals = (winners * part.sum(1, keepdims=True) for part in (votes.counts, votes.selection))
    return replace(votes, **dict(zip(("counts", "selection"), totals, strict=True)))


@surer.register
def _(votes: ExactVotes) -> Votes:
    rest = 2.0 * votes.log_rest
    return replace(votes, log_rest=rest, log_p_b=2.0 * votes.log_p_b, log_p_a=np.log1p(-np.exp(rest)))


@surer.register
def _(votes: GroupVotes) -> Votes:
    classes = np.arange(1 + votes.ballots.max())
    winners = (votes.ballots[:, :, None] == classes).sum(axis=1).argmax(axis=1)
    return replace(votes, ballots=np.zeros_like(votes.ballots) + winners[:, None], gaps=2.0 * votes.gaps)


@singledispatch
def tied(votes: Votes) -> Votes:
    """Votes that are divided equally among all classes."""
    raise NotImplementedError(type(votes).__name__)


@tied.register
def _(votes: LogitVotes) -> Votes:
    return replace(votes, logits=np.zeros_like(votes.logits))


@tied.register
def _(votes: CountVotes) -> Votes:
    even = {
        name: np.zeros_like(part) + part.sum(1, keepdims=True) // part.shape[1]
        for name, part in (("counts", votes.counts), ("selection", votes.selection))
    }
    return replace(votes, **even)


@tied.register
def _(votes: ExactVotes) -> Votes:
    half = np.full_like(votes.log_p_a, math.log(0.5))
    return replace(votes, log_p_a=half, log_p_b=half, log_rest=half)


@tied.register
def _(votes: GroupVotes) -> Votes:
    turns = np.arange(votes.ballots.shape[1]) % (1 + votes.labels.max())
    return replace(votes, ballots=np.zeros_like(votes.ballots) + turns, gaps=np.zeros_like(votes.gaps))


def ledgers(ledger: Ledger) -> dict[str, Ledger]:
    """Runs that break one assumption or another, and one that breaks all."""
    return {
        "an ordinary run": ledger,
        "an unknown model": with_facts(ledger, model_facts=ModelFacts(linear=False, convex=False, bias=True)),
        "unbounded inputs": with_facts(ledger, input_norm_bound=math.inf, feature_norm_bound=math.inf),
        "a map without a Lipschitz constant": with_facts(ledger, feature_lipschitz=None),
        "weights that depend on all updates": with_rounds(ledger, depends="all"),
        "rejected rounds": with_rounds(with_facts(ledger, rejects=True), accepted=False),
        "no noise": with_rounds(with_facts(ledger, test_noise_std=0.0), noise_std=0.0),
        "no models kept": with_facts(ledger, resampled=()),
        "nothing known at all": unknown(ledger),
    }


def unknown(ledger: Ledger) -> Ledger:
    """A run that no proof covers."""
    blind = with_facts(
        ledger,
        model_facts=ModelFacts(linear=False, convex=False, bias=True, loss="unknown"),
        input_norm_bound=math.inf,
        feature_norm_bound=math.inf,
        feature_lipschitz=None,
        test_noise_std=0.0,
        rejects=True,
        resampled=(),
    )
    blind = with_rounds(blind, depends="all", accepted=False, noise_std=0.0, breakdown=None, carries_state=True)
    return with_columns(blind, cap=math.inf, update_bound=math.inf, residual_norm=math.inf)


def short_updates(ledger: Ledger, factor: float) -> Ledger:
    """The ledger of a run in which nobody could submit more than a part of what they could."""
    return scaled(ledger, cap=factor, update_bound=factor, residual_norm=factor)


def scaled(ledger: Ledger, **factors: float) -> Ledger:
    """The ledger with some of its columns multiplied."""
    return with_columns(ledger, **{name: factor * getattr(ledger.clients, name) for name, factor in factors.items()})


def with_columns(ledger: Ledger, **changes: NDArray[np.float64] | float) -> Ledger:
    """The ledger with other columns."""
    columns = {name: np.broadcast_to(value, (len(ledger.clients),)) for name, value in changes.items()}
    return replace(ledger, clients=ClientColumns(**(vars(ledger.clients) | columns)))


def with_facts(ledger: Ledger, **changes: Any) -> Ledger:
    """The ledger with other static facts."""
    return replace(ledger, facts=ledger.facts.model_copy(update=changes))


def with_rounds(ledger: Ledger, **changes: Any) -> Ledger:
    """The ledger with other facts in every round."""
    return replace(ledger, rounds=tuple(record.model_copy(update=changes) for record in ledger.rounds))
