"""A command whose module takes its time to import."""

import torch


def heavy() -> None:
    """Draw with tensors."""
    torch.zeros(1)
