"""How long inputs can be, and how steep that makes the loss. Norms include the constant 1 of the bias."""

from __future__ import annotations

import numpy as np

from crfl_core.certification.measurements import norm_error, relative_error
from crfl_interface.ledger import Ledger
from crfl_interface.threat import Threat


def bias_input(ledger: Ledger) -> float:
    """The constant input of the bias, if the model has one."""
    return 1.0 if ledger.facts.model_facts.bias else 0.0


def input_bound(ledger: Ledger) -> float:
    """B: the largest norm among all clean training inputs, measured behind the feature maps."""
    exact = 1.0 + relative_error(ledger.facts.features, "float64")
    return float(np.hypot(max(ledger.facts.feature_norms) * exact, bias_input(ledger)))


def domain_bound(ledger: Ledger, threat: Threat) -> float:
    """B': a bound on the norm of any poisoned input, declared by the threat, else by the domain of the data."""
    return float(np.hypot(declared_bound(ledger, threat), bias_input(ledger)))


def declared_bound(ledger: Ledger, threat: Threat) -> float:
    """The same without the constant 1 of the bias; the domain's is enlarged by what feature maps may round."""
    facts = ledger.facts
    return threat.input_bound or facts.feature_norm_bound * (1.0 + 2.0 * norm_error(facts))


def smoothness(ledger: Ledger) -> float:
    """beta without weight decay: `B^2 / 2`."""
    return input_bound(ledger) ** 2 / 2.0
