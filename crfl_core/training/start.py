"""Where training starts: where the model itself does, at zeros, at random values, or at a file."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from crfl_core.errors import ConfigError
from crfl_core.plugin_api.model import BoundModel, Model
from crfl_core.plugin_api.plugin_errors import settings_of
from crfl_core.records.ledger import StartFacts
from crfl_core.records.round import Layout

KEY = "model.start"


class Start(NamedTuple):
    """The model before the first round, (P,), and what the ledger says of it."""

    parameters: Tensor
    facts: StartFacts


def start_of(plugin: Model, model: BoundModel, generator: np.random.Generator) -> Start:
    """The start that a config asks for. Raises `ConfigError` if it names a file that does not fit the model."""
    wanted = plugin.start
    if isinstance(wanted, Path):
        content = content_of(wanted)
        digest = hashlib.sha256(content).hexdigest()
        return Start(from_file(wanted, content, model.layout), StartFacts(kind="file", digest=digest))
    if wanted == "zeros":
        return Start(torch.zeros(model.layout.size), StartFacts(kind="zeros"))
    if wanted == "random" and model.facts.linear:
        width = math.sqrt(dict(model.layout.shapes)["weight"][1])
        return Start(torch.from_numpy(generator.uniform(-1.0, 1.0, model.layout.size) / width), StartFacts(kind=wanted))
    with settings_of("model", plugin):
        return Start(model.initial(generator), StartFacts(kind=wanted or "own"))


def content_of(path: Path) -> bytes:
    """The bytes of the file."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}", key=KEY) from error


def from_file(path: Path, content: bytes, layout: Layout) -> Tensor:
    """The tensors of a safetensors file as one vector; they must be exactly those of the model."""
    try:
        tensors = load(content)
    except (SafetensorError, ValueError) as error:
        raise ConfigError(f"{path}: is no safetensors file: {error}", key=KEY) from error
    wanted = {name: tuple(shape) for name, shape in layout.shapes}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            ours, theirs = (f"{each[name]}" if name in each else "none" for each in (wanted, found))
            raise ConfigError(
                f"{path}: the tensor {name!r} of the model has shape {ours}, in the file it has {theirs}: it belongs "
                "to another model, or to other feature maps",
                key=KEY,
            )
    flat = torch.cat([tensors[name].flatten().double() for name in wanted])
    if not bool(torch.isfinite(flat).all()):
        raise ConfigError(f"{path}: not all of its numbers are finite", key=KEY)
    return flat
