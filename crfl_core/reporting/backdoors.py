"""How well the backdoor of a run works."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from crfl_core.reporting.metrics import Backdoor
from crfl_core.training.evaluation import backdoor_score
from crfl_core.training.federation import Federation


def backdoor(federation: Federation, parameters: Tensor, failed: Sequence[int]) -> Backdoor | None:
    """How well the backdoor works, for the report."""
    rates = backdoor_score(federation, parameters, failed)
    if rates is None or federation.attack is None or federation.attack.backdoor_class is None:
        return None
    samples = int((federation.test_sets["backdoored"].labels != federation.attack.backdoor_class).sum())
    return Backdoor(
        target=federation.attack.backdoor_class,
        success_rate=rates.success_rate,
        clean_rate=rates.clean_rate,
        samples=samples,
    )
