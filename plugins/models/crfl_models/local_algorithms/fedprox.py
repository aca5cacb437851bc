"""FedProx: local models that are held near the broadcast one."""

from __future__ import annotations

from pydantic import Field

from crfl_core.extend import ProximalAlgorithm


class FedProx(ProximalAlgorithm):
    """FedProx (Li et al., 2020): SGD on the local loss plus `mu/2 ||w - w_0||^2`, w_0 being the broadcast model.

    `w <- w - eta (g + lambda w + mu (w - w_0))`. Pathwise certificates hold with the contraction of such steps.
    """

    mu: float = Field(0.1, ge=0, description="weight of the pull toward the broadcast model")

    def proximal_weight(self) -> float:
        """As it is set."""
        return self.mu
