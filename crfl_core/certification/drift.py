"""What a threat can do to one run: the drift of the global model, from the ledger alone.

Everything here holds for softmax regression trained by SGD, plain or proximal, under the checks of `assumptions`. Norms
of inputs include the constant 1 of the bias.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

import crfl_core.certification.formulas as formulas
from crfl_core.certification import rounding_error as floating
from crfl_core.certification.contraction import domain_bound, effective_input_bound, input_bound, smoothness
from crfl_core.records.ledger import ClientColumns, Ledger
from crfl_core.records.measurements import observed_residuals, precision
from crfl_core.records.threat import Threat

Array = NDArray[np.float64]


def has_honest_cap(ledger: Ledger, rows: ClientColumns) -> NDArray[np.bool_]:
    """Whose cap is no larger than what an honest client may submit, up to rounding."""
    return np.less_equal(rows.cap, rows.update_bound * (1.0 + 4.0 * precision(ledger.facts)))


def follows_protocol(rows: ClientColumns) -> NDArray[np.bool_]:
    """Who trained with the rate and the number of steps of an honest client."""
    return np.equal(rows.learning_rate, rows.honest_rate) & np.equal(rows.steps, rows.honest_steps)


@lru_cache(maxsize=1024)
def worst_poisoned_shares(table: int, samples: int, size: int, last: int, steps: int, kept: float) -> Array:
    """`worst_poisoned_share` of 0, 1, 2, ... samples, so many numbers. Most clients of a run are alike in this."""
    per_epoch = (samples - last) // size + 1
    sizes = (([size] * (per_epoch - 1) + [last]) * -(-steps // per_epoch))[:steps]
    return np.asarray(formulas.worst_poisoned_share(np.arange(float(table)), sizes, per_epoch, kept))


@dataclass(frozen=True)
class AttackedRound:
    """One attacked round: what each participant could contribute to the drift.

    `fade` is what the rounds up to the horizon leave of a drift; `diameter` = 2 rho bounds any drift of the round;
    `start_norm` is the spectral norm that weights have when local training begins.
    `strength` is S_i per unit of poison ratio; `deviating` what multiplying a clean update, or training it with another
    rate or number of steps, moves in the honest clean world; `arbitrary` what a client costs that submits anything the
    server lets through: infinite without a cap, unless what was submitted is known.
    """

    rows: ClientColumns
    fade: float
    diameter: float
    start_norm: Array
    strength: Array
    deviation_cost: Array
    arbitrary_cost: Array


@dataclass(frozen=True)
class DriftBound:
    """The drift that a threat can cause in the model of round `horizon`.

    Costs are sums over the attackers: the named ones, or as many of the worst as the threat assumes. With `observed`,
    what a client really submitted bounds what it costs, together with what it might have submitted instead. That is for
    statements about this one run, with all its noise: pathwise ones.
    """

    ledger: Ledger
    threat: Threat
    horizon: int
    observed: bool = False

    @staticmethod
    @lru_cache(maxsize=4)
    def of(ledger: Ledger, threat: Threat, horizon: int, *, observed: bool = False) -> DriftBound:
        """The same scenario for all levels and test sets: what it has worked out is not worked out again."""
        return DriftBound(ledger, threat, horizon, observed)

    @cached_property
    def attacked(self) -> tuple[AttackedRound, ...]:
        """The attacked rounds up to the horizon."""
        fades = formulas.later_products(self.lipschitz[: self.horizon])
        return tuple(
            self._attacked_round(number, float(fades[number - 1]))
            for number in self.threat.rounds
            if number <= self.horizon
        )

    @cached_property
    def lipschitz(self) -> Array:
        """The Lipschitz constant of every clean round of the run: 1, or less with weight decay, as it is computed."""
        exact = np.array([self._lipschitz_of(number) for number in range(1, self.ledger.facts.rounds + 1)])
        constants: Array = exact + self._rounding.growth
        return constants

    @cached_property
    def _rounding(self) -> formulas.Rounding:
        """What rounding does to every round; models after the horizon were not seen."""
        starts = floating.start_norms(self.ledger, self.horizon)
        scale = 1.0 if self.threat.poison == "update" else self.threat.scale
        return floating.rounding_of_rounds(self.ledger, starts, self._longest_input, scale)

    @cached_property
    def _observed(self) -> Array:
        """The residual that each row of the ledger really submitted."""
        return observed_residuals(self.ledger)

    @property
    def _longest_input(self) -> float:
        """A norm that no input exceeds which anybody trains on, whose training matters."""
        clean = input_bound(self.ledger)
        return clean if self.threat.poison == "update" else max(clean, domain_bound(self.ledger, self.threat))

    @cached_property
    def rounding(self) -> float:
        """How much further rounding may drive the worlds apart, from the first attacked round to the horizon."""
        parted = min(self.threat.rounds, default=self.horizon + 1)
        if parted > self.horizon:
            return 0.0
        errors = formulas.Rounding(self._rounding.error[: self.horizon], np.zeros(self.horizon))
        return float(formulas.rounding_drift(errors, self.lipschitz[: self.horizon])[parted - 1])

    @property
    def terms(self) -> int:
        """How many numbers were added up for a cost, at most."""
        return floating.count_terms(self.ledger)

    def rounding_budget(self, noises: Array) -> float:
        """What rounding costs in the rounds after the horizon, where noise is drawn again; `noises` begin there."""
        errors = np.concatenate([[0.0], self._rounding.error[self.horizon :]])
        rounding = formulas.Rounding(errors, np.zeros(len(errors)))
        return formulas.rounding_budget(rounding, noises, self.lipschitz[self.horizon - 1 :])

    def feature_cost(self, delta: Array) -> Array:
        """The drift if poisoned inputs move by at most `delta` in scaled input space, for every delta."""
        lipschitz = self.ledger.facts.feature_lipschitz
        assert lipschitz is not None
        moved = np.asarray(delta, np.float64) * lipschitz

        def terms(attacked: AttackedRound) -> Array:
            ratio = self.threat.poison_ratio
            share = np.asarray(ratio * attacked.rows.steps[:, None], np.float64)
            factors = self._factor_shift(attacked, share, moved)
            shift: Array = self._shift(attacked, moved) + factors
            return ratio * attacked.strength[:, None] * shift

        return self._total(terms, len(moved))

    def sample_cost(self, ratio: Array) -> Array:
        """The drift if a share `ratio` of every batch of an attacker is replaced by anything, for every ratio."""
        shares = np.asarray(ratio, np.float64)

        def terms(attacked: AttackedRound) -> Array:
            together: Array = shares * attacked.rows.steps[:, None]  # all of it may fall into one batch
            factors = self._factor_shift(attacked, together)
            return attacked.strength[:, None] * (self._largest_shift() + factors) * shares[None, :]

        return self._total(terms, len(shares))

    def sample_costs(self) -> Array:
        """The drift if 0, 1, 2, ... samples of every attacker are replaced by anything, wherever they fall in batches.

        The table ends with the smallest attacker's last sample: from there on all of its data are poisoned.
        """
        counts = np.arange(min(self.ledger.facts.samples) + 1.0)

        def terms(attacked: AttackedRound) -> Array:
            shares = self._worst_shares(attacked.rows, len(counts))
            rates: Array = attacked.rows.weight_bound * self.threat.scale * attacked.rows.learning_rate
            smallest = np.minimum(attacked.rows.batch_size, attacked.rows.last_batch)
            factors = self._factor_shift(attacked, counts / smallest[:, None])
            return rates[:, None] * shares * (self._largest_shift() + factors)

        return self._total(terms, len(counts))

    def client_costs(self) -> Array:
        """The drift caused by the 0, 1, 2, ... worst clients, with any data, and any updates if the threat says so.

        Two bounds for attackers that stay the same in all attacked rounds: the worst clients by their sums over the
        rounds, and the worst clients of every round, whose drift the clip bounds. Of unknown rounds, the worst count.
        """
        shift = float(formulas.replacement_shift(input_bound(self.ledger), domain_bound(self.ledger, self.threat)))
        terms = np.zeros((len(self.attacked), self.ledger.facts.clients))
        for row, attacked in zip(terms, self.attacked, strict=True):
            shifts = shift + self._factor_shift(attacked, np.ones((len(attacked.rows), 1)))
            row[attacked.rows.client] = self._terms(attacked, attacked.strength[:, None] * shifts)[:, 0]
        fades = np.array([attacked.fade for attacked in self.attacked])
        clips = np.array([attacked.diameter / 2.0 for attacked in self.attacked])
        if self.threat.rounds_at_most is None:
            return formulas.fixed_attackers_drift(terms, fades, clip_norms=clips)
        return formulas.unknown_rounds_drift(terms, fades, self.threat.rounds_at_most, clip_norms=clips)

    def _total(self, data_terms: Callable[[AttackedRound], Array], columns: int) -> Array:
        """The drift of all attacked rounds, or of the worst of them if they are unknown, for every column of terms."""
        each = np.zeros((len(self.attacked), columns))
        for row, attacked in zip(each, self.attacked, strict=True):
            row[:] = self._drift(attacked, data_terms(attacked))
        return formulas.worst_rounds(each, max(1, self.threat.attacked_rounds))

    def _drift(self, attacked: AttackedRound, data_terms: Array) -> Array:
        """What the attackers of one round together leave in the model of the horizon, for every column of terms."""
        terms = self._terms(attacked, data_terms)
        if isinstance(self.threat.clients, int):
            terms = np.sort(terms, axis=0)[::-1][: self.threat.clients]
        else:
            terms = terms[np.isin(attacked.rows.client, self.threat.clients)]
        together: Array = terms.sum(axis=0)
        return attacked.fade * np.minimum(together, attacked.diameter)

    def _terms(self, attacked: AttackedRound, data_terms: Array) -> Array:
        """What each participant costs as an attacker: by its data if it follows the protocol, never beyond the cap."""
        anything = attacked.arbitrary_cost[:, None] + np.zeros_like(data_terms)
        if self.threat.poison == "update" or self.ledger.facts.training.ball is not None:
            return anything
        return np.minimum(data_terms + attacked.deviation_cost[:, None], anything)

    def _shift(self, attacked: AttackedRound, delta: Array) -> Array:
        """G: how far the threat's poison moves one sample's gradient, (clients, deltas)."""
        poison = self.threat.poison
        return np.asarray(
            formulas.gradient_shift(
                "replacement" if poison == "update" else poison,
                delta[None, :],
                input_bound=input_bound(self.ledger),
                start_norm=attacked.start_norm[:, None],
                path=(attacked.rows.learning_rate * attacked.rows.steps)[:, None],
                domain_bound=domain_bound(self.ledger, self.threat),
            )
        )

    def _factor_shift(self, attacked: AttackedRound, shares: Array, delta: Array | None = None) -> Array:
        """What another factor of a poisoned batch adds to G, if attackers scale their batches as the protocol says.

        `shares` (clients, columns) are those of a batch that may be poisoned at most; without `delta` samples may be
        replaced.
        """
        limit = self.ledger.facts.training.spectrum
        poison = self.threat.poison
        if limit is None:
            return np.zeros(shares.shape)
        bounds = {"input_bound": input_bound(self.ledger), "domain_bound": domain_bound(self.ledger, self.threat)}
        kind = "labels" if poison == "labels" else "replacement" if delta is None or poison == "update" else poison
        change = formulas.spectrum_change(kind, 0.0 if delta is None else delta, **bounds)
        seen = np.where(attacked.rows.spectrum > 0, attacked.rows.spectrum, np.inf)[:, None]
        return np.asarray(formulas.factor_shift(change, limit, seen, np.minimum(shares, 1.0)))

    def _largest_shift(self) -> float:
        """G of one sample with which an attacker may do what it likes: replace it, or change its label only."""
        bound = input_bound(self.ledger)
        if self.threat.poison == "labels":
            return float(formulas.label_shift(bound))
        return float(formulas.replacement_shift(bound, domain_bound(self.ledger, self.threat)))

    def _worst_shares(self, rows: ClientColumns, table: int) -> Array:
        """The largest sums over steps of (poisoned / batch size) that 0, 1, 2, ... samples of each client can have."""
        kept = np.where(self._contracting(rows.learning_rate, rows), 1.0 - rows.learning_rate * self._pull(rows), 1.0)
        columns = np.take(self.ledger.facts.samples, rows.client), rows.batch_size, rows.last_batch, rows.steps, kept
        return np.array(
            [worst_poisoned_shares(table, *map(int, one), kept) for *one, kept in zip(*columns, strict=True)]
        )

    def _pull(self, rows: ClientColumns) -> Array:
        """`lambda + mu`: what damps a push in every further step, toward zero and toward the broadcast model."""
        pull: Array = rows.weight_decay + self.ledger.facts.training.proximal
        return pull

    def _contracting(self, rate: Array, rows: ClientColumns) -> NDArray[np.bool_]:
        """Where every local step contracts by `1 - eta (lambda + mu)`, and is not only a non-expansive map."""
        return np.less_equal(rate, 2.0 / (smoothness(self.ledger) + 2.0 * self._pull(rows)))

    def _attacked_round(self, number: int, fade: float) -> AttackedRound:
        record = self.ledger.round(number)
        rows = self.ledger.clients.of_round(number)
        damped = formulas.effective_steps(rows.learning_rate, rows.steps, self._pull(rows))
        steps = np.where(self._contracting(rows.learning_rate, rows), damped, rows.steps)
        scale = self.threat.scale
        honest = self.threat.clean_world == "honest"
        # Attackers that multiply in the clean world as well reach the cap there, too.
        instead = rows.update_bound if honest else rows.cap
        instead = np.where(has_honest_cap(self.ledger, rows), rows.cap, instead)
        if self.threat.poison != "update":  # without a cap, poison to come may reach farther than honest training
            farthest = np.maximum(instead, self._reach(rows, record.start_norm))
            instead = np.where(np.isinf(rows.cap), farthest, instead)
        submitted = rows.cap
        if self.observed:
            submitted = self._observed[self.ledger.clients.round == number]
        return AttackedRound(
            rows=rows,
            fade=fade,
            diameter=2.0 * record.clip_norm,
            start_norm=floating.weight_norms(self.ledger, number, self._longest_input),
            strength=formulas.attack_strength(rows.weight_bound, scale, rows.learning_rate, steps),
            deviation_cost=self._deviating(rows, record.start_norm) if honest else np.zeros(len(rows)),
            arbitrary_cost=formulas.byzantine_terms(rows.weight_bound, submitted, instead),
        )

    def _reach(self, rows: ClientColumns, start_norm: float) -> Array:
        """The longest residual that an attacker can train on poisoned data, multiplied as the threat says."""
        bound = effective_input_bound(
            self.ledger, max(input_bound(self.ledger), domain_bound(self.ledger, self.threat))
        )
        proximal = self.ledger.facts.training.proximal
        trained = formulas.update_bound(rows.learning_rate, rows.steps, bound, rows.weight_decay, proximal=proximal)
        lost = 1.0 - formulas.retention(rows.learning_rate, rows.steps, rows.weight_decay, proximal)
        pulled = np.abs(self.threat.scale * lost - (1.0 - rows.retention)) * start_norm
        return np.asarray(self.threat.scale * trained + pulled)

    def _deviating(self, rows: ClientColumns, start_norm: float) -> Array:
        """`p ||gamma u' - u||` for clean updates u' as the attackers train and u as the protocol says."""
        bound = effective_input_bound(self.ledger, input_bound(self.ledger))
        scale = self.threat.scale
        lost = 1.0 - rows.retention
        decay = rows.weight_decay
        proximal = self.ledger.facts.training.proximal
        clean = formulas.update_bound(rows.honest_rate, rows.honest_steps, bound, decay, proximal=proximal)
        own = formulas.update_bound(rows.learning_rate, rows.steps, bound, decay, proximal=proximal)
        own_lost = 1.0 - formulas.retention(rows.learning_rate, rows.steps, decay, proximal)
        apart = scale * own + clean + np.abs(scale * own_lost - lost) * start_norm
        multiplied = formulas.scale_terms(rows.weight_bound, scale, clean + lost * start_norm)
        return np.where(follows_protocol(rows), multiplied, rows.weight_bound * apart)

    def _lipschitz_of(self, number: int) -> float:
        rows = self.ledger.clients.of_round(number)
        contracts = bool(self._contracting(rows.honest_rate, rows).all())
        constant = formulas.round_contraction(rows.weight_bound, rows.retention if contracts else np.ones(len(rows)))
        if self.threat.clean_world == "honest" or number not in self.threat.rounds or self.threat.rounds_at_most == 1:
            return constant
        # In the scaled clean world attackers train and multiply as they do, which may expand a gap. The attack in one
        # unknown round makes the gap and meets none; of several unknown ones, any may expand it.
        return max(constant, self._expansion(rows))

    def _expansion(self, rows: ClientColumns) -> float:
        """The Lipschitz constant of a round in which the attackers' clean updates are multiplied; 0 if none is."""
        protocol = self.threat.poison == "update"  # then nothing else is known about their training
        rate = rows.honest_rate if protocol else rows.learning_rate
        steps = rows.honest_steps if protocol else rows.steps
        beta = smoothness(self.ledger) + rows.weight_decay
        proximal = self.ledger.facts.training.proximal
        if (rate * (beta + 2.0 * proximal) > 2.0).any():
            return np.inf
        reach = rows.weight_bound * (1.0 if proximal else formulas.averagedness(rate, beta, steps))
        if isinstance(self.threat.clients, int):
            chosen = np.argsort(-reach, kind="stable")[: self.threat.clients]
        else:
            chosen = np.flatnonzero(np.isin(rows.client, self.threat.clients))
        if self.threat.scale == 1 and (protocol or follows_protocol(rows).all()):
            return 0.0
        if proximal:  # an update is the difference of two non-expansive maps, and no averaged one
            return 1.0 + 2.0 * self.threat.scale * float(reach[chosen].sum())
        if np.isfinite(rows.cap[chosen]).any():
            return formulas.round_expansion_with_caps(
                rows.weight_bound[chosen], self.threat.scale, rate[chosen], beta[chosen], steps[chosen]
            )
        scales = np.ones(len(rows))
        scales[chosen] = self.threat.scale
        return formulas.round_expansion(rows.weight_bound, scales, rate, beta, steps)
