"""Triggers at test time: test inputs, moved within given norms so that linear models leave a class."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from crfl_core.errors import PluginFailure

if TYPE_CHECKING:
    from torch import Tensor

    from crfl_core.plugin_api.feature_map import FeatureMaps
    from crfl_core.plugin_api.model import BoundModel

STEPS = 12
LOST = -0.01
"""Lead of a class below which a model counts as lost, relative to the norm of its parameters: it is pushed no more."""
NORM_MARGIN = 1e-4
"""By how much, relatively, a trigger stays below its norm: what single precision rounds is not the attacker's."""


def find_triggers(
    maps: FeatureMaps, model: BoundModel, parameters: Tensor, x: Tensor, labels: Tensor, norms: Tensor
) -> Tensor:
    """Move inputs, (m, inputs), by less than these norms.

    As many as possible of the linear models, (G, P), leave the label of each input, by projected gradient descent. An
    input may leave the range of its dataset.
    """
    lengths = torch.linalg.vector_norm(parameters, dim=1, keepdim=True)
    # A linear model predicts the same at any length, and a long one must not outweigh the others.
    alike = (parameters / lengths.clamp(min=torch.finfo(torch.float64).tiny))[lengths[:, 0].isfinite()].to(x)
    reach = (norms[:, None] * (1.0 - NORM_MARGIN)).to(x)
    moved = x
    for _ in range(STEPS):
        moved = moved.detach().requires_grad_(True)
        logits = torch.cat([part for _, part in model.logits_in_parts(alike, maps(moved))], dim=1)
        place = labels[None, :, None].expand(len(alike), -1, 1)
        lead = logits.gather(-1, place)[..., 0] - logits.scatter(-1, place, -torch.inf).amax(-1)
        (slope,) = torch.autograd.grad(lead.clamp(min=LOST).sum(), moved)
        trigger = moved.detach() - x - reach / 3.0 * torch.nn.functional.normalize(slope, dim=1)
        moved = x + torch.nn.functional.normalize(trigger, dim=1) * trigger.norm(dim=1, keepdim=True).minimum(reach)
    within = torch.linalg.vector_norm(moved.double() - x.double(), dim=1) < norms
    return torch.where(within[:, None], moved, x)


def is_differentiable(maps: FeatureMaps, x: Tensor) -> bool:
    """Ask whether PyTorch differentiates the feature maps, at an input."""
    try:
        return maps(x[:1].detach().requires_grad_(True)).requires_grad
    except PluginFailure:  # such as a map that computes with NumPy
        return False
