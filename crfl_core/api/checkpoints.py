"""Where training stands, as tensors in a file and back."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from crfl_core.errors import StoreError
from crfl_core.federation.rounds import Progress
from crfl_core.federation.setup import Federation
from crfl_core.store.validation import fitting

PARAMETERS = "parameters"


def packed(progress: Progress, models: Tensor | None = None) -> dict[str, NDArray[Any]]:
    """Model and plugin states of a run under names; `models` to keep others, such as those before noise."""
    tensors = {PARAMETERS: (progress.models if models is None else models)[0]}
    for owner, state in progress.states[0].items():
        tensors |= {f"{owner}/{name}": tensor for name, tensor in state.items()}
    return {name: tensor.cpu().contiguous().numpy() for name, tensor in tensors.items()}


def unpacked(number: int, arrays: dict[str, NDArray[Any]], federation: Federation) -> Progress:
    """Inverse of `packed`. Raises `StoreError` for a model that is not of this federation."""
    try:
        fitting(arrays, PARAMETERS, (federation.model.layout.size,), federation.config.dtype)
    except ValueError as error:
        raise StoreError(f"the model kept of round {number} cannot be used: {error}") from error
    tensors = {name: torch.from_numpy(array).to(federation.device) for name, array in arrays.items()}
    parameters = tensors.pop(PARAMETERS)
    states: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        owner, _, name = key.partition("/")
        states.setdefault(owner, {})[name] = tensor
    return Progress(number, parameters[None], (states,))
