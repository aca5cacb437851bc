"""What the feature maps of a run were fitted to, in its directory: predictions need no data of the curator again."""

from __future__ import annotations

import torch

from crfl_core.records.blocks import digest_of
from crfl_core.records.ledger import RunFacts
from crfl_core.runs.run_directory import RunDirectory
from crfl_core.training.features import Fitted, FittedMaps

FILE = "features.safetensors"


def write_fitted(directory: RunDirectory, fitted: FittedMaps) -> None:
    """All tensors of all fitted maps, named by their place in the chain; no file if there are none."""
    tensors = {f"{place}.{name}": tensor.numpy() for place, one in fitted.items() for name, tensor in one.state.items()}
    if tensors:
        directory.write_tensors(FILE, tensors, {})


def read_fitted(directory: RunDirectory, facts: RunFacts) -> FittedMaps:
    """Inverse of `write_fitted`; raises a `StoreError` if it is not what the ledger says."""
    if not facts.fitted_maps:
        return {}
    tensors = {name: torch.from_numpy(array) for name, array in directory.read_tensors(FILE).items()}
    fitted: dict[int, Fitted] = {}
    for one in facts.fitted_maps:
        prefix = f"{one.place}."
        state = {name.removeprefix(prefix): tensors[name] for name in sorted(tensors) if name.startswith(prefix)}
        if digest_of(state) != one.digest:
            raise directory.damaged(FILE, f"what {one.feature_map!r} was fitted to is not what ledger.json says")
        fitted[one.place] = Fitted(state, one)
    return fitted
