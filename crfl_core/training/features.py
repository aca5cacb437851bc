"""Inputs behind the feature maps: computed once, mapped from the user's cache if that took long or they are many."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from crfl_core.files.data_files import sha256
from crfl_core.files.feature_cache import cached, intact, seal
from crfl_core.plugin_api.base import Plugin
from crfl_core.plugin_api.feature_map import FeatureMaps
from crfl_core.records.blocks import array_blocks, digest_of
from crfl_core.records.input_rows import ByteRows, Rows

Shown = Callable[[int, int], object]
"""Told after every block how many inputs of how many are done."""
Inputs = TypeVar("Inputs", Tensor, ByteRows)

ROWS_AT_ONCE = 65536
NUMBERS_AT_ONCE = 2**23
LARGE = 2**30
"""Features of this many bytes lie in a file and not in memory, however fast the maps are."""
TRIED = 8
"""Rows of a cached file that are computed again before it is believed."""
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
"""What rounding may do to them, relatively, when they are computed beside other rows."""


def mapped(maps: FeatureMaps, x: Inputs, shown: Shown | None = None) -> Inputs | Tensor:
    """Inputs behind the feature maps; the inputs themselves if there are none."""
    return computed(maps, x, shown) if maps.links else x


def computed(maps: FeatureMaps, x: Rows, shown: Shown | None) -> Tensor:
    """The features of all inputs, in memory."""
    result = torch.empty(len(x), maps.outputs, dtype=x.dtype, device=x.device)
    first = 0
    for piece in pieces(maps, x, shown):
        result[first : first + len(piece)] = piece
        first += len(piece)
    return result


def pieces(maps: FeatureMaps, x: Rows, shown: Shown | None) -> Iterator[Tensor]:
    """The features of some inputs at a time."""
    step = min(ROWS_AT_ONCE, max(1, NUMBERS_AT_ONCE // maps.widest))
    for first in range(0, len(x), step):
        yield maps(x[first : first + step])
        if shown is not None:
            shown(min(first + step, len(x)), len(x))


def features_of(maps: FeatureMaps, x: Inputs, shown: Shown | None = None) -> Inputs | Tensor:
    """The same, kept in the user's cache if a map is slow or there are many: then they are never in memory together.

    A file is found by a digest of the inputs, of the maps with versions, options and weights and of what was fitted. It
    is used if its checksum is right and some rows come out the same again; else the features are computed anew.
    """
    shape = len(x), maps.outputs
    large = math.prod(shape) * x.dtype.itemsize >= LARGE
    if not maps.links or not (large or any(feature_map.slow for feature_map in maps.maps)):
        return mapped(maps, x, shown)
    path = cached(f"{digest_of(x, *maps.fitted.values(), *described(maps))}.npy")
    found = read(path, maps, x)
    if found is not None:
        return found
    whole = None if large else computed(maps, x, shown)
    parts = pieces(maps, x, shown) if whole is None else [whole]
    with suppress(OSError):  # a full disk, or nobody may write there: the next run computes them again
        seal(path, array_blocks(shape, (part.to(x.dtype).cpu().numpy() for part in parts)))
        found = read(path, maps, x)
    found = whole if found is None else found
    return computed(maps, x, shown) if found is None else found


def read(path: Path, maps: FeatureMaps, x: Rows) -> Tensor | None:
    """The features in a cached file, mapped and not read; None if there are none to be trusted."""
    if not intact(path):
        return None
    try:
        # Copied page by page where somebody writes: PyTorch knows no read-only tensors.
        array = np.load(path, mmap_mode="c", allow_pickle=False)
    except (OSError, ValueError):
        return None
    features = torch.from_numpy(np.asarray(array)).to(x.device)
    if features.shape != (len(x), maps.outputs) or features.dtype != x.dtype:
        return None
    rows = torch.linspace(0, len(x) - 1, min(TRIED, len(x))).long().to(x.device)
    again = maps(x[rows])
    gaps, lengths = (torch.linalg.vector_norm(each, dim=-1) for each in (features[rows] - again, again))
    same = (gaps <= TOLERANCE[x.dtype] * lengths).all()
    return features if bool(same) else None


def described(maps: FeatureMaps) -> list[str]:
    """What the output of some maps depends on: names and versions, options, their code and weights, and PyTorch."""
    return [torch.__version__, *map(describe, maps.maps), *(link.digest or "" for link in maps.links)]


def describe(plugin: Plugin) -> str:
    """A plugin by its name, version, options and source."""
    file = getattr(sys.modules.get(type(plugin).__module__), "__file__", None)  # none in an interactive session
    code = sha256(Path(file)) if file and Path(file).is_file() else ""
    return f"{type(plugin).__qualname__} {plugin.full_name} {plugin.model_dump_json()} {code}"
