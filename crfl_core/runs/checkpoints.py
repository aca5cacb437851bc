"""Where training stands, as tensors in a file and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crfl_core.errors import StoreError
from crfl_core.records.ledger_validation import check_tensor
from crfl_core.training.federation import Federation
from crfl_core.training.memory import first_state
from crfl_core.training.rounds import Progress

PARAMETERS = "parameters"
ATTACK = "attack"
TWIN = "twin/"
FAILED = "failed"
Groups = tuple[Progress, ...]
"""Where training stands: one entry for each group."""


def packed(progress: Sequence[Progress], models: Sequence[Tensor] | None = None) -> dict[str, NDArray[Any]]:
    """Models and plugin states of a run under names.

    With the `models` before noise instead, from which continuations start, nothing of what attackers remember. The
    model of a run is (P,), those of several groups are (G, P), and their states are kept apart.
    """
    parameters = torch.cat([group.models for group in progress] if models is None else [*models])
    alone = len(progress) == 1
    tensors = {PARAMETERS: parameters[0] if alone else parameters}
    for number, group in enumerate(progress):
        place = "" if alone else f"group-{number}/"
        for owner, state in group.states[0].items():
            tensors |= {f"{place}{owner}/{name}": tensor for name, tensor in state.items()}
    remembered = (progress[0].attack_state if models is None else None) or {}
    tensors |= {f"{ATTACK}/{name}": tensor for name, tensor in remembered.items()}
    return {name: tensor.cpu().contiguous().numpy() for name, tensor in tensors.items()}


def packed_twin(twin: Groups) -> dict[str, NDArray[Any]]:
    """The same of the clean twin that is trained alongside; nothing as long as there is none."""
    failed = np.array([group.failed is not None for group in twin])
    tensors = {**packed(twin), FAILED: failed} if twin else {}
    return {f"{TWIN}{name}": tensor for name, tensor in tensors.items()}


def unpacked_twin(number: int, arrays: Mapping[str, NDArray[Any]], federation: Federation) -> Groups:
    """Inverse of `packed_twin`."""
    own = {name.removeprefix(TWIN): array for name, array in arrays.items() if name.startswith(TWIN)}
    failed = dict.fromkeys(np.flatnonzero(own.pop(FAILED, np.zeros(0))).tolist(), "its training ended before")
    groups = unpacked(number, own, failed, federation) if own else ()
    return tuple(replace(group, attack_state=None) for group in groups)


def unpacked(number: int, arrays: dict[str, NDArray[Any]], failed: Mapping[int, str], federation: Federation) -> Groups:
    """Inverse of `packed`; `failed` are the groups that do not train any more, and why.

    Raises `StoreError` for models that are not of this federation.
    """
    groups = len(federation.participation.members)
    size = federation.model.layout.size
    try:
        check_tensor(arrays, PARAMETERS, (size,) if groups == 1 else (groups, size), federation.config.dtype)
    except ValueError as error:
        raise StoreError(f"the model kept of round {number} cannot be used: {error}") from error
    of_run = {name: array for name, array in arrays.items() if not name.startswith(TWIN)}
    tensors = {name: torch.from_numpy(array).to(federation.device) for name, array in of_run.items()}
    kept = {key: tensors.pop(key) for key in [*tensors] if key.startswith(f"{ATTACK}/")}
    remembered = {key.removeprefix(f"{ATTACK}/"): tensor for key, tensor in kept.items()}
    attack_state = None if first_state(federation) is None else remembered
    parameters = tensors.pop(PARAMETERS)
    models = parameters[None] if parameters.ndim == 1 else parameters
    states: list[dict[str, dict[str, Tensor]]] = [{} for _ in models]
    for key, tensor in tensors.items():
        place, _, own = key.partition("/") if parameters.ndim > 1 else ("group-0", "", key)
        owner, _, name = own.partition("/")
        states[int(place.removeprefix("group-"))].setdefault(owner, {})[name] = tensor
    return tuple(
        Progress(number, one[None], (own,), failed=failed.get(group), attack_state=attack_state)
        for group, (one, own) in enumerate(zip(models, states, strict=True))
    )
