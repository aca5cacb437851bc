"""Plain SGD: the local training of the paper."""

from __future__ import annotations

from crfl_core.extend import ProximalAlgorithm


class Sgd(ProximalAlgorithm):
    """Plain mini-batch SGD, `w <- w - eta (g + lambda w)`: what every pathwise certificate stands on."""

    def proximal_weight(self) -> float:
        """Nothing pulls but the data and weight decay."""
        return 0.0
