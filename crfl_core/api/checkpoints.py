"""Where training stands, as tensors in a file and back."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from crfl_core.federation.memory import first_state
from crfl_core.federation.rounds import Progress
from crfl_core.federation.setup import Federation

PARAMETERS = "parameters"
ATTACK = "attack"


def packed(progress: Progress, models: Tensor | None = None) -> dict[str, NDArray[Any]]:
    """Model and plugin states of a run under names.

    With the `models` before noise instead, from which continuations start, nothing of what attackers remember.
    """
    tensors = {PARAMETERS: (progress.models if models is None else models)[0]}
    remembered = progress.attack_state if models is None else None
    for owner, state in {**progress.states[0], ATTACK: remembered or {}}.items():
        tensors |= {f"{owner}/{name}": tensor for name, tensor in state.items()}
    return {name: tensor.cpu().contiguous().numpy() for name, tensor in tensors.items()}


def unpacked(number: int, arrays: dict[str, NDArray[Any]], federation: Federation) -> Progress:
    """Inverse of `packed`."""
    tensors = {name: torch.from_numpy(array).to(federation.device) for name, array in arrays.items()}
    parameters = tensors.pop(PARAMETERS)
    states: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        owner, _, name = key.partition("/")
        states.setdefault(owner, {})[name] = tensor
    learns, remembered = first_state(federation) is not None, states.pop(ATTACK, {})
    return Progress(number, parameters[None], (states,), attack_state=remembered if learns else None)
