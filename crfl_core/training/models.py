"""Model of a federation behind its feature maps: built, checked, and its parameters before the first round."""

from __future__ import annotations

import copy
import hashlib
import inspect
import math
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from crfl_core.errors import ConfigError, PluginFailure
from crfl_core.plugin_api.feature_map import FeatureMaps
from crfl_core.plugin_api.local_algorithm import LocalAlgorithm, ProximalAlgorithm, StatefulAlgorithm
from crfl_core.plugin_api.plugin_errors import errors_of, source_location
from crfl_core.plugin_api.softmax_regression import LinearModel, StartedLinear, find_changed_method
from crfl_core.records.inputs import DataFacts
from crfl_core.records.ledger import StartFacts, TrainingFacts
from crfl_core.records.round import Layout
from crfl_core.training.features import FittedMaps, states_of

if TYPE_CHECKING:
    from crfl_core.config import RunConfig
    from crfl_core.plugin_api.model import BoundModel, Model


def build_model(config: RunConfig, facts: DataFacts, fitted: FittedMaps) -> tuple[FeatureMaps, BoundModel]:
    """Build the feature maps and the model for data like these."""
    maps = FeatureMaps(config.model.features, facts.inputs, facts.image_shape, states_of(fitted))
    return maps, bind_model(config, maps, facts)


def bind_model(config: RunConfig, maps: FeatureMaps, facts: DataFacts) -> BoundModel:
    """Build another instance of the model behind these feature maps."""
    with errors_of("model", config.model):
        model = config.model.build(DataFacts(maps.outputs, facts.classes, facts.domain, maps.image_shape))
    check_linear(config.model, model)
    if isinstance(model, LinearModel) and model.facts.linear:
        model = StartedLinear(model, maps.outputs, facts.classes)
    return model


def copy_model(model: BoundModel, config: RunConfig, maps: FeatureMaps, facts: DataFacts) -> BoundModel:
    """Return a copy of a model, or another instance.

    Another instance is built if the model cannot be copied. The core's own model keeps nothing and is returned itself.
    """
    if type(model) is StartedLinear:
        return model
    try:
        return copy.deepcopy(model)
    except Exception:  # it holds something that has no copy, such as a lock
        return bind_model(config, maps, facts)


def gradient_bound(plugin: Model, model: BoundModel, input_norm: float) -> float:
    """Ask the model for the norm that no sample's gradient exceeds."""
    with errors_of("model", plugin):
        bound = model.gradient_bound(input_norm)
    if not isinstance(bound, int | float) or not bound >= 0:
        raise PluginFailure(f"model: {plugin.full_name}: gradient_bound() must be at least 0, found {bound!r}")
    return bound


def training_facts(config: RunConfig) -> TrainingFacts:
    """Return what the core can say about how honest clients train."""
    training = config.training
    algorithm = config.training.algorithm
    plain = isinstance(algorithm, ProximalAlgorithm)
    proximal = 0.0
    if isinstance(algorithm, ProximalAlgorithm):
        with errors_of("training.algorithm", algorithm):
            proximal = algorithm.proximal_weight()
        if not isinstance(proximal, int | float) or not 0 <= proximal < math.inf:
            raise PluginFailure(
                f"algorithm {algorithm.full_name}: proximal_weight() must be finite and at least 0, found {proximal!r}"
            )
    return TrainingFacts(
        algorithm=algorithm.configured_as,
        plain=plain,
        proximal=proximal,
        clip_gradients=training.clip_gradients,
        remembers=remembered_names(algorithm),
        class_balance=training.class_balance,
        toward_start=training.toward_start,
    )


def remembered_names(algorithm: LocalAlgorithm) -> tuple[str, ...]:
    """Return the names of the vectors that clients keep.

    Raises `PluginFailure` if they are not words.
    """
    if not isinstance(algorithm, StatefulAlgorithm):
        return ()
    names = getattr(algorithm, "remembers", None)
    words = isinstance(names, tuple) and all(isinstance(one, str) and one.isidentifier() for one in names)
    if not names or not words:
        raise PluginFailure(
            f"algorithm {algorithm.full_name}: remembers must be a tuple of words, as in ('variate',), found {names!r}"
        )
    found: tuple[str, ...] = names
    return found


def check_linear(plugin: Model, model: BoundModel) -> None:
    """Raise `PluginFailure` if a foreign model calls itself linear.

    Only an unchanged `LinearModel` may, because linear models carry certificates.
    """
    if not model.facts.linear:
        return
    if not isinstance(model, LinearModel) or model.facts != LinearModel.facts_of(model):
        raise PluginFailure(
            f"model: {plugin.full_name} ({source_location(type(model))}) says that it is linear in its parameters: "
            "build a LinearModel and put what it does to inputs into a feature map, or set linear = False"
        )
    if (changed := find_changed_method(model)) is not None:
        raise PluginFailure(
            f"model: {plugin.full_name} changes {changed}() of LinearModel "
            f"({source_location(inspect.getattr_static(model, changed))}): certificates rest on it; override "
            "initial_parameters(), write a feature map, or set linear = False"
        )
    if type(model.layout) is not Layout:
        raise PluginFailure(
            f"model: {plugin.full_name} has a layout of its own ({source_location(type(model.layout))}): certificates "
            "rest on that of LinearModel; leave it as it is, or set linear = False"
        )


START_KEY = "model.start"


class Start(NamedTuple):
    """Model before the first round, (P,), and what the ledger says of it."""

    parameters: Tensor
    facts: StartFacts


def initial_model(plugin: Model, model: BoundModel, generator: np.random.Generator) -> Start:
    """Return the start that a config asks for.

    Of "reserve", it is the model's own start, from which the server trains. Raises `ConfigError` if the config names a
    file that does not fit the model.
    """
    wanted = plugin.start
    if isinstance(wanted, Path):
        content = read_start_file(wanted)
        digest = hashlib.sha256(content).hexdigest()
        return Start(parse_start_file(wanted, content, model.layout), StartFacts(kind="file", digest=digest))
    if wanted == "zeros":
        return Start(torch.zeros(model.layout.size), StartFacts(kind="zeros"))
    if wanted == "random" and model.facts.linear:
        width = math.sqrt(dict(model.layout.shapes)["weight"][1])
        return Start(torch.from_numpy(generator.uniform(-1.0, 1.0, model.layout.size) / width), StartFacts(kind=wanted))
    with errors_of("model", plugin):
        return Start(model.initial_parameters(generator), StartFacts(kind="random" if wanted == "random" else "own"))


def read_start_file(path: Path) -> bytes:
    """Read the bytes of the file that a config names."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}", key=START_KEY) from error


def parse_start_file(path: Path, content: bytes, layout: Layout) -> Tensor:
    """Return the tensors of a safetensors file as one vector.

    They must be exactly those of the model.
    """
    try:
        tensors = load(content)
    except (SafetensorError, ValueError) as error:
        raise ConfigError(f"{path}: is not a safetensors file: {error}", key=START_KEY) from error
    wanted = {name: tuple(shape) for name, shape in layout.shapes}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            ours, theirs = (f"{each[name]}" if name in each else "none" for each in (wanted, found))
            raise ConfigError(
                f"{path}: the tensor {name!r} of the model has shape {ours}, in the file it has {theirs}: it belongs "
                "to another model, or to other feature maps",
                key=START_KEY,
            )
    flat = torch.cat([tensors[name].flatten().double() for name in wanted])
    if not bool(torch.isfinite(flat).all()):
        raise ConfigError(f"{path}: not all of its numbers are finite", key=START_KEY)
    return flat
