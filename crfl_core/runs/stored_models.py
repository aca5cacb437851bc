"""Models in run directories: the final model, the models of continuations, and fitted feature maps.

Predictions and certificates read them, and need neither training data nor the data of the server again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from crfl_core.records.array_bytes import digest_of
from crfl_core.records.ledger_validation import check_tensor
from crfl_core.runs.run_directory import FITTED_MAPS, LEDGER, MODEL, RunDirectory
from crfl_core.training.features import Fitted, FittedMaps

if TYPE_CHECKING:
    from crfl_core.records.ledger import RunFacts
    from crfl_core.records.round import Layout
    from crfl_core.records.votes import VoteRequest
    from crfl_core.training.federation import Federation

MODELS = "models"
"""Name of the tensor in a file of continued models."""


def read_parameters(directory: RunDirectory, federation: Federation) -> Tensor:
    """Read the final model, (P,), to the device of the federation.

    With groups, read the models of all of them, (G, P).
    """
    return flat_parameters(directory, federation.model.layout, federation.facts).to(federation.device)


def flat_parameters(directory: RunDirectory, layout: Layout, facts: RunFacts) -> Tensor:
    """Read the final model as one vector, or one for each group."""
    groups = () if facts.groups is None else (facts.models,)
    shapes = {name: (*groups, *shape) for name, shape in layout.shapes}
    tensors = read_shaped_tensors(directory, MODEL, shapes, facts.dtype)
    return torch.cat([tensors[name].reshape(*groups, -1) for name in shapes], dim=-1)


def write_models(directory: RunDirectory, request: VoteRequest, models: Tensor) -> None:
    """Write the models of the continuations that vote in a request."""
    directory.write_tensors(models_file(request), {MODELS: models.cpu().numpy()}, {})


def read_models(directory: RunDirectory, request: VoteRequest, layout: Layout, dtype: str) -> Tensor:
    """Read the models of the continuations that voted in a request."""
    shape = (request.selection_models + request.models, layout.size)
    return read_shaped_tensors(directory, models_file(request), {MODELS: shape}, dtype)[MODELS]


def models_file(request: VoteRequest) -> str:
    """Return the name of the file with a request's models.

    They are the models of the continuations that vote in it.
    """
    return f"resample/models-{request.digest}.safetensors"


def read_shaped_tensors(
    directory: RunDirectory, file: str, shapes: Mapping[str, tuple[int, ...]], dtype: str
) -> dict[str, Tensor]:
    """Read tensors of these shapes from a file. Raises `StoreError` for others."""
    arrays = directory.read_tensors(file)
    try:
        return {name: torch.from_numpy(check_tensor(arrays, name, shape, dtype)) for name, shape in shapes.items()}
    except ValueError as error:
        raise directory.damage_error(file, error) from error


def write_fitted_maps(directory: RunDirectory, fitted: FittedMaps) -> None:
    """Write all tensors of all fitted feature maps.

    They are named by the map's place in the chain. Nothing is written without fitted maps.
    """
    tensors = {
        f"{place}.{name}": tensor.numpy()
        for place, fitted_map in fitted.items()
        for name, tensor in fitted_map.state.items()
    }
    if tensors:
        directory.write_tensors(FITTED_MAPS, tensors, {})


def read_fitted_maps(directory: RunDirectory, facts: RunFacts) -> FittedMaps:
    """Read what `write_fitted_maps` wrote.

    Raises `StoreError` if it is not what the ledger says.
    """
    if not facts.fitted_maps:
        return {}
    tensors = {name: torch.from_numpy(array) for name, array in directory.read_tensors(FITTED_MAPS).items()}
    fitted: dict[int, Fitted] = {}
    for expected in facts.fitted_maps:
        prefix = f"{expected.place}."
        state = {name.removeprefix(prefix): tensors[name] for name in sorted(tensors) if name.startswith(prefix)}
        if digest_of(state) != expected.digest:
            raise directory.damage_error(
                FITTED_MAPS, f"what {expected.feature_map!r} was fitted to is not what {LEDGER} says"
            )
        fitted[expected.place] = Fitted(state, expected)
    return fitted
