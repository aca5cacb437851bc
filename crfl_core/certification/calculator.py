"""The radius of a single point with every term of the formulas shown: a calculator for people."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from pydantic import ConfigDict, Field

from crfl_core.certification import formulas
from crfl_core.table import Table


class Point(Table):
    """One prediction and one attack, all rounds alike: what a formula needs, and nothing else."""

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


@dataclass(frozen=True)
class Term:
    """One term: its symbol, its value, and what it is."""

    symbol: str
    value: float
    meaning: str


@dataclass(frozen=True)
class Calculation:
    """The terms in the order in which they are used, and the feature radius of each rule. Labels are kept."""

    terms: tuple[Term, ...]
    radii: dict[str, float]


def radius(point: Point) -> Calculation:
    """The paper's radius and the sound ones of the same point.

    "pathwise" compares two runs with the same noise; "tail" the votes when the noise of the attacked round and all
    later ones is drawn again. Both need softmax regression with `eta <= 2 / beta`, and cover features, not labels. They
    are infinite if no input of norm at most B can do more harm than is tolerated.

    >>> paper = Point(p_a=0.7, p_b=0.1, noise_std=0.01, clip_norm=3.0, weight=0.05, learning_rate=0.001, steps=30,
    ...               poison_ratio=0.05, scale=10.0, rounds_after=90, input_norm=9.2)
    >>> {rule: round(value, 3) for rule, value in radius(paper).radii.items()}
    {'paper (reproduction, not a proof)': 1.285, 'pathwise': 0.966, 'tail': inf}
    """
    after = point.rounds_after
    strength = float(
        formulas.attack_strength(point.weight, point.scale, point.learning_rate, point.steps * point.poison_ratio)
    )
    budget = float(formulas.kl_budget(point.p_a, point.p_b))
    lipschitz = formulas.gradient_lipschitz(point.clip_norm)
    contraction = formulas.log_contraction([point.clip_norm] * after, [point.noise_std] * after)
    threshold = float(formulas.gaussian_threshold(point.p_a, point.p_b))
    start = point.clip_norm if point.start_norm is None else point.start_norm
    per_unit = float(formulas.budget_per_unit_drift([point.noise_std] * (after + 1), np.ones(after + 1))[0])
    drifts = {"pathwise": point.noise_std * threshold, "tail": threshold / per_unit}

    def cost(delta: formulas.Array) -> formulas.Array:
        shift = formulas.feature_shift(
            delta,
            input_bound=point.input_norm,
            start_norm=start,
            path=point.learning_rate * point.steps,
            domain_bound=point.input_norm,
        )
        return point.attackers * strength * np.asarray(shift)

    paper = formulas.log_radius(
        budget,
        noise_std=point.noise_std,
        lipschitz=lipschitz,
        strengths=[strength] * point.attackers,
        contraction=contraction,
    )
    with np.errstate(over="ignore"):
        radii = {"paper (reproduction, not a proof)": float(np.exp(paper))}
    for rule, drift in drifts.items():
        certified = formulas.certified_size(np.array([drift]))
        radii[rule] = float(formulas.feature_radius(certified, cost)[0])
    terms = (
        Term("S", strength, "p gamma eta tau q/n of one attacker"),
        Term("eps", budget, "KL divergence that leaves the vote unchanged (paper)"),
        Term("L_Z", lipschitz, "the paper's Lipschitz constant at rho; true for inputs of norm at most 2"),
        Term("log prod", contraction, "sum of log(2 Phi(rho/sigma) - 1) over the rounds after the attack (paper)"),
        Term("mu*", threshold, "Gaussian shift, in noise units, that leaves the vote unchanged"),
        Term("D pathwise", drifts["pathwise"], "drift of the parameters tolerated with the same noise"),
        Term("D tail", drifts["tail"], "drift tolerated when the noise of this and all later rounds is drawn again"),
        Term(
            "G max",
            float(formulas.replacement_shift(point.input_norm, point.input_norm)),
            "gradient shift of one sample, however far it is moved within norm B",
        ),
        Term(
            "F", float(formulas.gradient_shift_rate(point.input_norm * start)), "exact gradient shift per unit of delta"
        ),
    )
    return Calculation(terms, radii)
