"""A plugin whose module prints when it is imported."""

from __future__ import annotations

from crfl_aggregators.fedavg import FedAvg

print("thank you for choosing this plugin")


class Chatty(FedAvg):
    """Federated averaging with a greeting."""
