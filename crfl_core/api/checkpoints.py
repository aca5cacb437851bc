"""Where training stands, as tensors in a file and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from crfl_core.federation.rounds import Progress

PARAMETERS = "parameters"
Groups = tuple[Progress, ...]
"""Where training stands: one entry for each group."""


def packed(progress: Sequence[Progress], models: Sequence[Tensor] | None = None) -> dict[str, NDArray[Any]]:
    """Models, (G, P), and plugin states of a run under names; `models` to keep others, such as those before noise."""
    kept = [group.models for group in progress] if models is None else models
    tensors = {PARAMETERS: torch.cat([*kept])}
    for number, group in enumerate(progress):
        for owner, state in group.states[0].items():
            tensors |= {f"{number}/{owner}/{name}": tensor for name, tensor in state.items()}
    return {name: tensor.cpu().contiguous().numpy() for name, tensor in tensors.items()}


def unpacked(number: int, arrays: dict[str, NDArray[Any]], failed: Mapping[int, str], device: torch.device) -> Groups:
    """Inverse of `packed`; `failed` are the groups that do not train any more, and why."""
    tensors = {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
    parameters = tensors.pop(PARAMETERS)
    states: list[dict[str, dict[str, Tensor]]] = [{} for _ in parameters]
    for key, tensor in tensors.items():
        group, owner, name = key.split("/", 2)
        states[int(group)].setdefault(owner, {})[name] = tensor
    each = enumerate(zip(parameters, states, strict=True))
    return tuple(Progress(number, one[None], (own,), failed=failed.get(group)) for group, (one, own) in each)
