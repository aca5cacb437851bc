"""Inputs behind the feature maps: computed once, then mapped from the user's cache if that took long."""

from __future__ import annotations

import hashlib
import io
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crfl_files.published import sha256
from crfl_files.sealed import BYTES_AT_ONCE, cached, intact, seal
from crfl_interface.kinds.feature_map import FeatureMaps
from crfl_interface.kinds.plugin import Plugin
from crfl_interface.updates import State

Shown = Callable[[int, int], object]
"""Told after every block how many inputs of how many are done."""

ROWS_AT_ONCE = 65536
NUMBERS_AT_ONCE = 2**23
TRIED = 8
"""Rows of a cached file that are computed again before it is believed."""
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
"""What rounding may do to them, relatively, when they are computed beside other rows."""


def mapped(maps: FeatureMaps, x: Tensor, shown: Shown | None = None) -> Tensor:
    """Inputs behind the feature maps; the inputs themselves if there are none."""
    if not maps.links:
        return x
    result = x.new_empty(len(x), maps.outputs)
    step = min(ROWS_AT_ONCE, max(1, NUMBERS_AT_ONCE // maps.widest))
    for first in range(0, len(x), step):
        result[first : first + step] = maps(x[first : first + step])
        if shown is not None:
            shown(min(first + step, len(x)), len(x))
    return result


def features_of(maps: FeatureMaps, x: Tensor, shown: Shown | None = None) -> Tensor:
    """The same, kept in the user's cache if a map is slow.

    A file is found by a digest of the inputs, of the maps with versions, options and weights and of what was fitted. It
    is used if its checksum is right and some rows come out the same again; else the features are computed anew.
    """
    if not any(feature_map.slow for feature_map in maps.maps):
        return mapped(maps, x, shown)
    path = cached(f"{digest_of(x, *maps.fitted.values(), *described(maps))}.npy")
    found = read(path, maps, x)
    if found is not None:
        return found
    computed = mapped(maps, x, shown)
    with suppress(OSError):  # a full disk, or nobody may write there: the next run computes them again
        seal(path, array_blocks(computed.cpu().numpy()))
        found = read(path, maps, x)
    return computed if found is None else found


def read(path: Path, maps: FeatureMaps, x: Tensor) -> Tensor | None:
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


def array_blocks(array: NDArray[np.generic]) -> Iterator[bytes]:
    """The content of a file in NumPy's format, a few megabytes at a time."""
    header = {"descr": array.dtype.str, "fortran_order": False, "shape": array.shape}
    beginning = io.BytesIO()
    np.lib.format.write_array_header_1_0(beginning, header)
    yield beginning.getvalue()
    yield from byte_blocks(array)


def byte_blocks(array: NDArray[np.generic]) -> Iterator[bytes]:
    """The bytes of an array, a few megabytes at a time."""
    flat = np.ascontiguousarray(array).reshape(-1)
    step = max(1, BYTES_AT_ONCE // flat.itemsize)
    for first in range(0, len(flat), step):
        yield flat[first : first + step].tobytes()


def described(maps: FeatureMaps) -> list[str]:
    """What the output of some maps depends on: names and versions, options, their code and weights, and PyTorch."""
    return [torch.__version__, *map(describe, maps.maps), *(link.digest or "" for link in maps.links)]


def describe(plugin: Plugin) -> str:
    """A plugin by its name, version, options and source."""
    file = getattr(sys.modules.get(type(plugin).__module__), "__file__", None)  # none in an interactive session
    code = sha256(Path(file)) if file and Path(file).is_file() else ""
    return f"{type(plugin).__qualname__} {plugin.full_name} {plugin.model_dump_json()} {code}"


def digest_of(*parts: Tensor | State | str) -> str:
    """A digest of texts, tensors and states, in this order."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, str):
            digest.update(f"text {len(part)} {part}".encode())
        elif isinstance(part, torch.Tensor):
            array = part.cpu().numpy()
            digest.update(f"tensor {array.dtype.str} {array.shape}".encode())
            for block in byte_blocks(array):
                digest.update(block)
        else:
            for name in sorted(part):
                digest.update(digest_of(name, part[name]).encode())
    return digest.hexdigest()
