"""Drift bound: how far a threat can move the global model of one run, from the ledger alone.

The drift is the Euclidean distance between the models of the attacked and of the clean world, in parameter space.
Everything here holds for softmax regression trained by SGD, plain or proximal, if the checks of `assumption_checks`
hold. Norms of inputs include the constant 1 of the bias.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

import crfl_core.certification.formulas as formulas
from crfl_core.certification import rounding_error
from crfl_core.certification.contraction import (
    damping,
    domain_bound,
    effective_input_bound,
    follows_protocol,
    has_honest_cap,
    input_bound,
    is_contracting,
    round_lipschitz,
)
from crfl_core.records.measurements import observed_residuals

if TYPE_CHECKING:
    from crfl_core.records.ledger import ClientColumns, Ledger
    from crfl_core.records.threat import Threat

Array = NDArray[np.float64]


@dataclass(frozen=True)
class AttackedRound:
    """One attacked round: what each participant can contribute to the drift.

    `fade` is the factor that the rounds up to the horizon leave of a drift. `diameter` = 2 rho bounds any drift of the
    round. `start_spectral_norm` is that of the weights when local training begins. `strength` is S_i per unit of poison
    ratio. `deviation_cost` is the drift in the honest clean world of multiplying a clean update, or of training
    it with another rate or number of steps. `arbitrary_cost` is that of a client that submits anything the server lets
    through: infinite without a cap, unless the submitted update is known.
    """

    rows: ClientColumns
    fade: float
    diameter: float
    start_spectral_norm: Array
    strength: Array
    deviation_cost: Array
    arbitrary_cost: Array


@dataclass(frozen=True)
class DriftBound:
    """Bound on the drift that a threat can cause in the model of round `horizon`.

    Costs are sums over the attackers: the named ones, or as many of the worst clients as the threat assumes. With
    `observed`, what a client really submitted bounds its cost, together with what it might have submitted instead. That
    holds for statements about this one run with all its noise: pathwise ones.
    """

    ledger: Ledger
    threat: Threat
    horizon: int
    observed: bool = False

    @staticmethod
    @lru_cache(maxsize=4)
    def of(ledger: Ledger, threat: Threat, horizon: int, *, observed: bool = False) -> DriftBound:
        """Return a shared bound for these arguments.

        All levels and test sets reuse what it has computed.
        """
        return DriftBound(ledger, threat, horizon, observed)

    def feature_cost(self, delta: Array) -> Array:
        """Return the drift for every bound `delta` on moved inputs.

        Poisoned inputs move by at most `delta` in scaled input space.
        """
        lipschitz = self.ledger.facts.feature_lipschitz
        assert lipschitz is not None
        moved = np.asarray(delta, np.float64) * lipschitz

        def costs_per_client(attacked: AttackedRound) -> Array:
            ratio = self.threat.poison_ratio
            share = np.asarray(ratio * attacked.rows.steps[:, None], np.float64)
            factors = self._factor_shift(attacked, share, moved)
            shift: Array = self._shift(attacked, moved) + factors
            return ratio * attacked.strength[:, None] * shift

        return self._total(costs_per_client, len(moved))

    def sample_cost(self, ratio: Array) -> Array:
        """Return the drift for every replaced share of the batches.

        A share `ratio` of every batch of an attacker is replaced by anything.
        """
        shares = np.asarray(ratio, np.float64)

        def costs_per_client(attacked: AttackedRound) -> Array:
            together: Array = shares * attacked.rows.steps[:, None]  # all of it may fall into one batch
            factors = self._factor_shift(attacked, together)
            return attacked.strength[:, None] * (self._largest_shift() + factors) * shares[None, :]

        return self._total(costs_per_client, len(shares))

    def sample_costs(self) -> Array:
        """Return the drift if 0, 1, 2, ... samples are replaced.

        They are samples of every attacker and fall anywhere in the batches. The table ends with the smallest attacker's
        last sample: from there on all of its data are poisoned.
        """
        counts = np.arange(min(self.ledger.facts.samples) + 1.0)

        def costs_per_client(attacked: AttackedRound) -> Array:
            shares = self._worst_shares(attacked.rows, len(counts))
            rates: Array = attacked.rows.weight_bound * self.threat.scale * attacked.rows.learning_rate
            smallest = np.minimum(attacked.rows.batch_size, attacked.rows.last_batch)
            factors = self._factor_shift(attacked, counts / smallest[:, None])
            return rates[:, None] * shares * (self._largest_shift() + factors)

        return self._total(costs_per_client, len(counts))

    def client_costs(self) -> Array:
        """Return the drift of the 0, 1, 2, ... worst clients.

        They have any data or, if the threat says so, submit any update. Two bounds apply to attackers that stay the
        same in all attacked rounds: the worst clients by their sums over the rounds, and the worst clients of every
        round, whose drift the clip bounds. Of unknown rounds, the worst count.
        """
        terms = self.client_terms()
        fades = np.array([attacked.fade for attacked in self.attacked])
        clips = np.array([attacked.diameter / 2.0 for attacked in self.attacked])
        if self.threat.rounds_at_most is None:
            return formulas.fixed_attackers_drift(terms, fades, clip_norms=clips)
        return formulas.unknown_rounds_drift(terms, fades, self.threat.rounds_at_most, clip_norms=clips)

    def client_terms(self) -> Array:
        """Return the drift of each client in each attacked round.

        The client is an attacker. The shape is (attacked rounds, N).
        """
        shift = float(formulas.replacement_shift(input_bound(self.ledger), domain_bound(self.ledger, self.threat)))
        terms = np.zeros((len(self.attacked), self.ledger.facts.clients))
        for row, attacked in zip(terms, self.attacked, strict=True):
            shifts = shift + self._factor_shift(attacked, np.ones((len(attacked.rows), 1)))
            row[attacked.rows.client] = self._terms(attacked, attacked.strength[:, None] * shifts)[:, 0]
        return terms

    @cached_property
    def attacked(self) -> tuple[AttackedRound, ...]:
        """Return the attacked rounds up to the horizon."""
        fades = formulas.later_products(self.lipschitz[: self.horizon])
        return tuple(
            self._attacked_round(number, float(fades[number - 1]))
            for number in self.threat.rounds
            if number <= self.horizon
        )

    @cached_property
    def lipschitz(self) -> Array:
        """Return the Lipschitz constant of every clean round as computed.

        It is 1, or less with weight decay, plus rounding.
        """
        rounds = range(1, self.ledger.facts.rounds + 1)
        exact = np.array([round_lipschitz(self.ledger, self.threat, number) for number in rounds])
        constants: Array = exact + self._rounding.growth
        return constants

    @cached_property
    def rounding(self) -> float:
        """Return the drift that rounding adds up to the horizon.

        It counts from the first attacked round.
        """
        parted = min(self.threat.rounds, default=self.horizon + 1)
        if parted > self.horizon:
            return 0.0
        errors = formulas.Rounding(self._rounding.error[: self.horizon], np.zeros(self.horizon))
        return float(formulas.rounding_drift(errors, self.lipschitz[: self.horizon])[parted - 1])

    @property
    def terms(self) -> int:
        """Return the largest number of terms added up for a cost."""
        return rounding_error.count_terms(self.ledger)

    def rounding_budget(self, noises: Array) -> float:
        """Return the trade-off budget of rounding after the horizon.

        There noise is drawn again. `noises` are the noise stds from the round of the horizon on.
        """
        errors = np.concatenate([[0.0], self._rounding.error[self.horizon :]])
        rounding = formulas.Rounding(errors, np.zeros(len(errors)))
        return formulas.rounding_budget(rounding, noises, self.lipschitz[self.horizon - 1 :])

    @cached_property
    def _rounding(self) -> formulas.Rounding:
        """Return what rounding does to every round."""
        starts = rounding_error.start_norms(self.ledger, self.horizon)
        scale = 1.0 if self.threat.poison == "update" else self.threat.scale
        return rounding_error.rounding_of_rounds(self.ledger, starts, self._longest_input, scale)

    @cached_property
    def _observed(self) -> Array:
        """Return each ledger row's norm of the residual really submitted."""
        return observed_residuals(self.ledger)

    @property
    def _longest_input(self) -> float:
        """Return a norm bound for all inputs on which training matters."""
        clean = input_bound(self.ledger)
        return clean if self.threat.poison == "update" else max(clean, domain_bound(self.ledger, self.threat))

    def _total(self, data_terms: Callable[[AttackedRound], Array], columns: int) -> Array:
        """Add up the drift of all attacked rounds.

        Of unknown rounds the worst count. There is a sum for every column of terms.
        """
        drifts = np.zeros((len(self.attacked), columns))
        for row, attacked in zip(drifts, self.attacked, strict=True):
            row[:] = self._drift(attacked, data_terms(attacked))
        return formulas.worst_rounds(drifts, max(1, self.threat.attacked_rounds))

    def _drift(self, attacked: AttackedRound, data_terms: Array) -> Array:
        """Return what one round's attackers leave in the horizon's model.

        There is a value for every column of terms.
        """
        terms = self._terms(attacked, data_terms)
        if isinstance(self.threat.clients, int):
            terms = np.sort(terms, axis=0)[::-1][: self.threat.clients]
        else:
            terms = terms[np.isin(attacked.rows.client, self.threat.clients)]
        together: Array = terms.sum(axis=0)
        return attacked.fade * np.minimum(together, attacked.diameter)

    def _terms(self, attacked: AttackedRound, data_terms: Array) -> Array:
        """Return the cost of each participant as an attacker.

        It is the cost by its data if it trains, never beyond the cap.
        """
        anything = attacked.arbitrary_cost[:, None] + np.zeros_like(data_terms)
        if self.threat.poison == "update" or self.ledger.facts.training.ball is not None:
            return anything
        return np.minimum(data_terms + attacked.deviation_cost[:, None], anything)

    def _shift(self, attacked: AttackedRound, delta: Array) -> Array:
        """Return G, how far the poison moves one sample's gradient.

        The poison is that of the threat. The shape is (clients, deltas).
        """
        poison = self.threat.poison
        return np.asarray(
            formulas.gradient_shift(
                "replacement" if poison == "update" else poison,
                delta[None, :],
                input_bound=input_bound(self.ledger),
                start_norm=attacked.start_spectral_norm[:, None],
                path=(attacked.rows.learning_rate * attacked.rows.steps)[:, None],
                domain_bound=domain_bound(self.ledger, self.threat),
            )
        )

    def _factor_shift(self, attacked: AttackedRound, shares: Array, delta: Array | None = None) -> Array:
        """Return what a poisoned batch's other factor adds to G.

        The batch-spectrum rule gives the poisoned batch another factor. `shares` (clients, columns) bound the poisoned
        share of a batch; without `delta` samples may be replaced.
        """
        limit = self.ledger.facts.training.spectrum
        if limit is None:
            return np.zeros(shares.shape)
        poison = self.threat.poison
        kind: formulas.SampleChange = "replacement"
        if poison == "labels" or (delta is not None and poison != "update"):
            kind = poison
        change = formulas.spectrum_change(
            kind,
            0.0 if delta is None else delta,
            input_bound=input_bound(self.ledger),
            domain_bound=domain_bound(self.ledger, self.threat),
        )
        seen = np.where(attacked.rows.spectrum > 0, attacked.rows.spectrum, np.inf)[:, None]
        return np.asarray(formulas.factor_shift(change, limit, seen, np.minimum(shares, 1.0)))

    def _largest_shift(self) -> float:
        """Return G of one sample that an attacker may replace.

        With poisoned labels the attacker may change the label alone.
        """
        bound = input_bound(self.ledger)
        if self.threat.poison == "labels":
            return float(formulas.label_shift(bound))
        return float(formulas.replacement_shift(bound, domain_bound(self.ledger, self.threat)))

    def _worst_shares(self, rows: ClientColumns, table: int) -> Array:
        """Return the clients' largest poisoned shares for 0, 1, 2, ... samples.

        A share is the sum over steps of (poisoned / batch size).
        """
        contracts = is_contracting(self.ledger, rows, rows.learning_rate)
        kept = np.where(contracts, 1.0 - rows.learning_rate * damping(self.ledger, rows), 1.0)
        samples = np.take(self.ledger.facts.samples, rows.client)
        columns = (samples, rows.batch_size, rows.last_batch, rows.steps, kept)
        return np.array(
            [
                worst_poisoned_shares(table, int(count), int(size), int(last), int(steps), step_retention)
                for count, size, last, steps, step_retention in zip(*columns, strict=True)
            ]
        )

    def _attacked_round(self, number: int, fade: float) -> AttackedRound:
        record = self.ledger.round(number)
        rows = self.ledger.clients.of_round(number)
        damped = formulas.effective_steps(rows.learning_rate, rows.steps, damping(self.ledger, rows))
        steps = np.where(is_contracting(self.ledger, rows, rows.learning_rate), damped, rows.steps)
        scale = self.threat.scale
        honest = self.threat.clean_world == "honest"
        # In the scaled clean world attackers multiply as well, and so reach the cap there, too.
        honest_norm = rows.update_bound if honest else rows.cap
        honest_norm = np.where(has_honest_cap(self.ledger, rows), rows.cap, honest_norm)
        if self.threat.poison != "update":  # without a cap, poison to come may reach farther than honest training
            farthest = np.maximum(honest_norm, self._reach(rows, record.start_norm))
            honest_norm = np.where(np.isinf(rows.cap), farthest, honest_norm)
        submitted_norm = rows.cap
        if self.observed:
            submitted_norm = self._observed[self.ledger.clients.round == number]
        return AttackedRound(
            rows=rows,
            fade=fade,
            diameter=2.0 * record.clip_norm,
            start_spectral_norm=rounding_error.weight_norms(self.ledger, number, self._longest_input),
            strength=formulas.attack_strength(rows.weight_bound, scale, rows.learning_rate, steps),
            deviation_cost=self._deviation_cost(rows, record.start_norm) if honest else np.zeros(len(rows)),
            arbitrary_cost=formulas.byzantine_terms(rows.weight_bound, submitted_norm, honest_norm),
        )

    def _reach(self, rows: ClientColumns, start_norm: float) -> Array:
        """Return the longest residual that an attacker can submit.

        The attacker trains it on poisoned data and multiplies it by the scale.
        """
        bound = effective_input_bound(
            self.ledger, max(input_bound(self.ledger), domain_bound(self.ledger, self.threat))
        )
        proximal = self.ledger.facts.training.proximal
        trained = formulas.update_bound(rows.learning_rate, rows.steps, bound, rows.weight_decay, proximal=proximal)
        lost = 1.0 - formulas.retention(rows.learning_rate, rows.steps, rows.weight_decay, proximal)
        pulled = np.abs(self.threat.scale * lost - (1.0 - rows.retention)) * start_norm
        return np.asarray(self.threat.scale * trained + pulled)

    def _deviation_cost(self, rows: ClientColumns, start_norm: float) -> Array:
        """Return `p ||gamma u' - u||` for clean updates u' and u.

        The attackers train u', and the protocol asks for u.
        """
        bound = effective_input_bound(self.ledger, input_bound(self.ledger))
        scale = self.threat.scale
        lost = 1.0 - rows.retention
        decay = rows.weight_decay
        proximal = self.ledger.facts.training.proximal
        clean = formulas.update_bound(rows.honest_rate, rows.honest_steps, bound, decay, proximal=proximal)
        attackers = formulas.update_bound(rows.learning_rate, rows.steps, bound, decay, proximal=proximal)
        attackers_lost = 1.0 - formulas.retention(rows.learning_rate, rows.steps, decay, proximal)
        apart = scale * attackers + clean + np.abs(scale * attackers_lost - lost) * start_norm
        multiplied = formulas.scale_terms(rows.weight_bound, scale, clean + lost * start_norm)
        return np.where(follows_protocol(rows), multiplied, rows.weight_bound * apart)


@lru_cache(maxsize=1024)
def worst_poisoned_shares(table: int, samples: int, size: int, last: int, steps: int, kept: float) -> Array:
    """Return `worst_poisoned_share` of 0, 1, ..., `table` - 1 samples.

    Most clients of a run share the answer.
    """
    per_epoch = (samples - last) // size + 1
    sizes = (([size] * (per_epoch - 1) + [last]) * -(-steps // per_epoch))[:steps]
    return np.asarray(formulas.worst_poisoned_share(np.arange(float(table)), sizes, per_epoch, kept))
