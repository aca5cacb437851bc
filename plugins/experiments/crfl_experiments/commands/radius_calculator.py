"""The radius of a single point with every term of the formulas shown: a calculator for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from crfl_core import formulas
from crfl_core.records.table import Table


class Point(Table):
    """One prediction and one attack, all rounds alike: the numbers that the formulas need."""

    model_config = ConfigDict(allow_inf_nan=False)

    p_a: float = Field(gt=0, le=1, description="lower bound on the probability of the first class")
    p_b: float = Field(ge=0, lt=1, description="upper bound on the probability of any other")
    noise_std: float = Field(gt=0, description="noise of the server in every round, and at test time: sigma")
    clip_norm: float = Field(gt=0, description="clip norm in the attacked round: rho")
    weight: float = Field(gt=0, le=1, description="aggregation weight of an attacker: p")
    learning_rate: float = Field(gt=0, description="local learning rate: eta")
    steps: int = Field(ge=1, description="local steps: tau")
    poison_ratio: float = Field(gt=0, le=1, description="poisoned share of a batch: q/n")
    scale: float = Field(1.0, ge=1, description="factor on a malicious update: gamma")
    attackers: int = Field(1, ge=1, description="attackers, all alike: R")
    rounds_after: int = Field(0, ge=0, description="rounds after the attacked one")
    input_norm: float = Field(1.0, gt=0, description="bound on the norm of all inputs, bias included: B")
    start_norm: float | None = Field(
        None, ge=0, description="spectral norm of the broadcast weights; unset: the clip norm"
    )

    deltas: tuple[Annotated[float, Field(ge=0)], ...] = Field(
        (), description="what each attacker moves its poisoned samples by, or one number for all: delta_i"
    )

    @model_validator(mode="after")
    def _one_for_each(self) -> Point:
        if len(self.deltas) not in (0, 1, self.attackers):
            raise PydanticCustomError(
                "deltas", "must be one number, or one for each of the {count} attackers", {"count": self.attackers}
            )
        return self

    @property
    def strength(self) -> float:
        """Return S, an attacker's largest factor on a gradient shift."""
        poisoned = self.steps * self.poison_ratio
        return float(formulas.attack_strength(self.weight, self.scale, self.learning_rate, poisoned))

    @property
    def start(self) -> float:
        """Return the bound on the spectral norm of the broadcast weights."""
        return self.clip_norm if self.start_norm is None else self.start_norm


@dataclass(frozen=True)
class Term:
    """One term: its symbol, its value, and its meaning."""

    symbol: str
    value: float
    meaning: str


@dataclass(frozen=True)
class Calculation:
    """Terms in the order in which they are used, and the feature radius of each rule. Labels are kept.

    `divergence` is what the paper's Theorem 2 says of the deltas of the attackers, if there are some: the bound on the
    KL divergence of the attacked and the clean model after the attacked round, and after every later one. Theorem 1 is
    `covered`: whether at most eps is left of it, for which attackers may have different deltas.
    """

    terms: tuple[Term, ...]
    radii: dict[str, float]
    divergence: tuple[float, ...] = ()
    covered: bool | None = None


def radius(point: Point) -> Calculation:
    """Calculate the paper's radius and the sound ones of the same point.

    "pathwise" compares two runs with the same noise; "tail" the votes when the noise of the attacked round and all
    later ones is drawn again. Both need softmax regression with `eta <= 2 / beta`, and cover features, not labels. They
    are infinite if no input of norm at most B can do more harm than is tolerated.

    >>> paper = Point(p_a=0.7, p_b=0.1, noise_std=0.01, clip_norm=3.0, weight=0.05, learning_rate=0.001, steps=30,
    ...               poison_ratio=0.05, scale=10.0, rounds_after=90, input_norm=9.2)
    >>> {rule: round(value, 3) for rule, value in radius(paper).radii.items()}
    {'paper (reproduction, not a proof)': 1.285, 'pathwise': 0.966, 'tail': inf}
    """
    paper = paper_terms(point)
    own = pathwise_terms(point)
    terms = {term.symbol: term.value for term in (*paper, *own)}
    radii = {"paper (reproduction, not a proof)": paper_radius(point, terms)}
    for rule in ("pathwise", "tail"):
        radii[rule] = feature_radius(point, terms[f"D {rule}"])
    divergence = paper_divergence(point, terms) if point.deltas else ()
    covered = divergence[-1] <= terms["eps"] if divergence and point.p_a > point.p_b else None
    return Calculation((*paper, *own), radii, divergence, covered)


def paper_terms(point: Point) -> tuple[Term, ...]:
    """Return the terms of Corollary 1 of the paper.

    The other rules have the same S.
    """
    after = point.rounds_after
    contraction = formulas.log_contraction([point.clip_norm] * after, [point.noise_std] * after)
    return (
        Term("S", point.strength, "p gamma eta tau q/n of one attacker"),
        Term(
            "eps",
            float(formulas.kl_budget(point.p_a, point.p_b)),
            "KL divergence that leaves the vote unchanged (paper)",
        ),
        Term(
            "L_Z",
            formulas.gradient_lipschitz(point.clip_norm),
            "the paper's Lipschitz constant at rho; true for inputs of norm at most 2",
        ),
        Term("log prod", contraction, "sum of log(2 Phi(rho/sigma) - 1) over the rounds after the attack (paper)"),
    )


def pathwise_terms(point: Point) -> tuple[Term, ...]:
    """Return the terms of the pathwise and tail rules.

    They are the drift that the vote tolerates under both rules, and the drift that moved samples cause.
    """
    noise = point.noise_std
    rounds = point.rounds_after + 1
    threshold = float(formulas.gaussian_threshold(point.p_a, point.p_b))
    per_unit = float(formulas.budget_per_unit_drift([noise] * rounds, np.ones(rounds))[0])
    farthest = float(formulas.replacement_shift(point.input_norm, point.input_norm))
    rate = float(formulas.gradient_shift_rate(point.input_norm * point.start))
    return (
        Term("mu*", threshold, "Gaussian shift, in noise units, that leaves the vote unchanged"),
        Term("D pathwise", noise * threshold, "drift of the parameters tolerated with the same noise"),
        Term(
            "D tail",
            threshold / per_unit,
            "drift tolerated when the noise of this and all later rounds is drawn again",
        ),
        Term("G max", farthest, "gradient shift of one sample, however far it is moved within norm B"),
        Term("F", rate, "exact gradient shift per unit of delta"),
    )


def paper_radius(point: Point, terms: Mapping[str, float]) -> float:
    """Calculate the radius of Corollary 1."""
    radius = formulas.log_radius(
        terms["eps"],
        noise_std=point.noise_std,
        lipschitz=terms["L_Z"],
        strengths=[terms["S"]] * point.attackers,
        contraction=terms["log prod"],
    )
    with np.errstate(over="ignore"):
        return float(np.exp(radius))


def paper_divergence(point: Point, terms: Mapping[str, float]) -> tuple[float, ...]:
    """Calculate the bound of Theorem 2 for every round.

    The first value is after the attacked round, the others are after each later round.
    """
    deltas = point.deltas if len(point.deltas) == point.attackers else point.deltas * point.attackers
    added = formulas.attack_divergence(
        deltas, noise_std=point.noise_std, lipschitz=terms["L_Z"], strengths=[terms["S"]] * point.attackers
    )
    later = point.rounds_after
    clips = [point.clip_norm] * (later + 1)
    noises = [point.noise_std] * (later + 1)
    return tuple(map(float, formulas.divergence_by_round([added, *[0.0] * later], clips, noises)))


def feature_radius(point: Point, tolerated: float) -> float:
    """Calculate the largest change of poisoned features whose drift is tolerated."""

    def drift(delta: formulas.Array) -> formulas.Array:
        shift = formulas.feature_shift(
            delta,
            input_bound=point.input_norm,
            start_norm=point.start,
            path=point.learning_rate * point.steps,
            domain_bound=point.input_norm,
        )
        return point.attackers * point.strength * np.asarray(shift)

    certified = formulas.largest_attack(np.array([tolerated]))
    return float(formulas.feature_radius(certified, drift)[0])
