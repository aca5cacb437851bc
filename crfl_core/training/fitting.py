"""Feature maps that are fitted: to what, to which inputs, and what came out. No client's data are among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from crfl_core.errors import ConfigError, OptionError, PluginFailure
from crfl_core.files.feature_cache import SEAL, cached, intact, seal
from crfl_core.plugin_api.feature_map import FeatureMap, FeatureMaps, FittedMap
from crfl_core.plugin_api.plugin_errors import settings_of
from crfl_core.records.blocks import digest_of
from crfl_core.records.input_rows import Rows
from crfl_core.records.inputs import DataFacts
from crfl_core.records.ledger import FittedFacts
from crfl_core.records.round import State
from crfl_core.training.features import ROWS_AT_ONCE, describe, described, mapped

SHARED = 0.01
"""The part of a curator's inputs that may also be a client's: collections have a few pictures twice."""


@dataclass(frozen=True)
class Fitted:
    """What was fitted for one map, and what the ledger says about it."""

    state: State
    facts: FittedFacts


FittedMaps = Mapping[int, Fitted]
"""By the place in the chain."""


def states(fitted: FittedMaps) -> dict[int, State]:
    """What the maps need to be bound."""
    return {place: one.state for place, one in fitted.items()}


def fit_maps(
    maps: Sequence[FeatureMap], facts: DataFacts, curator: Tensor | None, dtype: torch.dtype = torch.float32
) -> FittedMaps:
    """Fit every map that wants it, in order, to its own public inputs or to those of the curator, (m, inputs)."""
    fitted: dict[int, Fitted] = {}
    for place, feature_map in enumerate(maps):
        if not isinstance(feature_map, FittedMap):
            continue
        front = FeatureMaps(maps[:place], facts.inputs, facts.image_shape, states(fitted))
        with settings_of(f"model.features.{place}", feature_map):
            own = feature_map.own_inputs(facts)
            samples, source = chosen(feature_map, own, curator)
            samples = checked_inputs(feature_map, samples.to(dtype), facts.inputs)
            key = digest_of(samples, *states(fitted).values(), *described(front), describe(feature_map))
            state = kept_state(key)
            if state is None:
                state = checked_state(feature_map, feature_map.fit(mapped(front, samples.clone())))
                with suppress(OSError):  # a full disk, or nobody may write there
                    seal(cached(f"{key}.safetensors"), [save_tensors(dict(state))])
        fitted[place] = Fitted(
            state,
            FittedFacts(
                place=place,
                feature_map=feature_map.configured_as,
                source=source,
                samples=len(samples),
                inputs_digest=digest_of(samples),
                digest=digest_of(state),
            ),
        )
    return fitted


def chosen(
    feature_map: FittedMap, own: Tensor | None, curator: Tensor | None
) -> tuple[Tensor, Literal["public", "curator"]]:
    """The inputs that a map is fitted to, and whose they are."""
    if own is not None:
        return own, "public"
    if curator is None:
        raise OptionError(
            "type",
            f"{feature_map.configured_as!r} is fitted to the inputs of a trusted curator, and there are none: set "
            "reserve.curator, or options with which it brings its own",
        )
    return curator, "curator"


def checked_inputs(feature_map: FittedMap, samples: Tensor, inputs: int) -> Tensor:
    """Inputs like those of the data, or a failure of who made them."""
    if samples.ndim != 2 or samples.shape[1] != inputs or not len(samples) or not bool(samples.isfinite().all()):
        raise PluginFailure(
            f"feature map {feature_map.full_name}: own_inputs() must be finite numbers of shape (samples, {inputs}), "
            f"found {tuple(samples.shape)}"
        )
    return samples


def checked_state(feature_map: FittedMap, state: object) -> State:
    """What a map wants to keep: finite tensors by name."""
    if not isinstance(state, Mapping) or not all(
        isinstance(name, str) and isinstance(tensor, torch.Tensor) and bool(tensor.isfinite().all())
        for name, tensor in state.items()
    ):
        raise PluginFailure(f"feature map {feature_map.full_name}: fit() must return finite tensors by name")
    return {name: tensor.detach().cpu().contiguous() for name, tensor in sorted(state.items())}


def kept_state(key: str) -> State | None:
    """What was fitted to the same inputs before, from the user's cache."""
    path = cached(f"{key}.safetensors")
    if not intact(path):
        return None
    try:
        state: State = load_tensors(path.read_bytes()[:-SEAL])
    except (OSError, SafetensorError):
        return None
    return state


def check_apart(curator: Tensor, *others: Rows) -> None:
    """Refuse a curator whose inputs are also those of the clients, who are not trusted, or of the test."""
    own = [row.tobytes() for row in curator.cpu().numpy()]
    theirs = (row.tobytes() for x in others for some in x.split(ROWS_AT_ONCE) for row in some.cpu().numpy())
    known = set(own).intersection(theirs)
    shared = sum(row in known for row in own)
    if shared > SHARED * len(curator):
        raise ConfigError(
            f"{shared} of the curator's {len(curator)} inputs are also among those of the clients or of the test: give "
            "a curator inputs of its own",
            key="reserve.curator",
        )
