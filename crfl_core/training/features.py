"""Feature maps: fitted if they want that, checked, and applied once to all inputs; results may be cached in a file."""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from crfl_core.errors import ConfigError, OptionError, PluginFailure, wrap_failures
from crfl_core.files.data_files import may_write_caches, sha256
from crfl_core.files.feature_cache import CHECKSUM_BYTES, cache_path, is_intact, write_cache_file
from crfl_core.plugin_api.base import is_built_in, names_code
from crfl_core.plugin_api.feature_map import FeatureMap, FeatureMaps, FittedMap
from crfl_core.plugin_api.plugin_errors import errors_of
from crfl_core.records.array_bytes import array_blocks, digest_of
from crfl_core.records.input_rows import ByteRows, Rows
from crfl_core.records.inputs import partition_digest
from crfl_core.records.ledger import FittedFacts
from crfl_core.training.stored_rows import stored_rows

if TYPE_CHECKING:
    from crfl_core.plugin_api.base import Plugin
    from crfl_core.records.inputs import DataFacts
    from crfl_core.records.round import State

OnProgress = Callable[[int, int], object]
"""Told after every block how many inputs of how many are done."""
Inputs = TypeVar("Inputs", Tensor, ByteRows, Rows)
RowsOfClients = Sequence[NDArray[np.int64]]

ROWS_AT_ONCE = 65536
FEATURE_NUMBERS_AT_ONCE = 2**23
LARGE = 2**30
"""Features of this many bytes lie in a file and not in memory, however fast the maps are."""
TRIED = 8
"""Rows of a cached file that are computed again before it is believed."""
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
"""Relative rounding error of features that are computed beside other rows."""


def map_inputs(
    maps: FeatureMaps, x: Inputs, on_progress: OnProgress | None = None, partition: RowsOfClients | None = None
) -> Inputs | Tensor:
    """Return inputs behind the feature maps.

    Without maps, return the inputs themselves.
    """
    return compute_features(maps, x, on_progress, partition) if maps.links else x


def compute_features(
    maps: FeatureMaps, x: Rows, on_progress: OnProgress | None, partition: RowsOfClients | None = None
) -> Tensor:
    """Compute the features of all inputs, in memory.

    With a partition, those of each client are computed in calls of its own.
    """
    result = torch.empty(len(x), maps.outputs, dtype=x.dtype, device=x.device)
    if partition is not None:
        done = 0
        for rows in partition:
            own = torch.from_numpy(rows).to(x.device)
            result[own] = compute_features(copy_maps(maps), x[own], None)
            done += len(rows)
            if on_progress is not None:
                on_progress(done, len(x))
        return result
    first = 0
    for piece in pieces(maps, x, on_progress):
        result[first : first + len(piece)] = piece
        first += len(piece)
    return result


def copy_maps(maps: FeatureMaps) -> FeatureMaps:
    """Return a copy of maps that run code from outside crfl.

    So what a map keeps of inputs reaches no other inputs. Our own maps keep nothing, and some are large.
    """
    if all(is_built_in(one) and not names_code(one) for one in maps.maps):
        return maps
    with wrap_failures(f"feature maps {maps.names} cannot be copied, as every client of a group needs its own"):
        return copy.deepcopy(maps)


def pieces(maps: FeatureMaps, x: Rows, on_progress: OnProgress | None) -> Iterator[Tensor]:
    """Yield the features of some inputs at a time.

    Those of a `batch_independent` first map are stored row by row.
    """
    step = min(ROWS_AT_ONCE, max(1, FEATURE_NUMBERS_AT_ONCE // maps.widest))
    for first in range(0, len(x), step):
        some = x[first : first + step]
        yield map_stored(maps, some, first, len(x), on_progress) if maps.maps[0].batch_independent else maps(some)
        if on_progress is not None:
            on_progress(min(first + step, len(x)), len(x))


def map_stored(maps: FeatureMaps, x: Tensor, first: int, total: int, on_progress: OnProgress | None) -> Tensor:
    """Return features, with the user's cache for the first map.

    The cache serves the rows that it has.
    """
    encoder = maps.links[0]
    key = digest_of(describe_arithmetic(x), torch.__version__, describe_plugin(maps.maps[0]), encoder.digest)
    with wrap_failures(f"feature map {maps.maps[0].full_name} failed"):
        on_rows = None if on_progress is None else lambda done: on_progress(first + done, total)
        dtype = torch.empty(0, dtype=x.dtype).numpy().dtype
        encoded = stored_rows(key, encoder.outputs, dtype).encode(encoder, x, on_rows)
    return maps.after_first(encoded)


def load_or_compute_features(
    maps: FeatureMaps, x: Inputs, on_progress: OnProgress | None = None, partition: RowsOfClients | None = None
) -> Inputs | Tensor:
    """Load the features of all inputs, or compute them.

    They come from the user's cache if a map is slow or there are many features. A file is found by a digest of the
    inputs, of the maps with versions, options and weights and of what was fitted. It is used if its checksum is right
    and some rows come out the same again; else the features are computed again. Many features are never in memory
    together. In a dry run the features of the first input stand for those of all. With a `partition` no bit of a
    client's features depends on other clients' inputs, nor on how many they are; then all are in memory once.
    """
    shape = len(x), maps.outputs
    large = math.prod(shape) * x.dtype.itemsize >= LARGE
    is_slow = any(feature_map.slow for feature_map in maps.maps)
    slow = is_slow and not maps.maps[0].batch_independent
    if maps.links and (large or is_slow) and not may_write_caches():  # a dry run: one row stands for all
        return maps(x[:1]).expand(len(x), maps.outputs)
    if not maps.links or not (large or slow):
        return map_inputs(maps, x, on_progress, partition)
    apart = () if partition is None else (partition_digest(partition), describe_arithmetic(x))
    path = cache_path(f"{digest_of(x, *maps.fitted.values(), *describe_maps(maps), *apart)}.npy")
    tried = maps if partition is None else copy_maps(maps)
    found = read_cached_features(path, tried, x)
    if found is not None:
        return found
    whole = None if large and partition is None else compute_features(maps, x, on_progress, partition)
    parts = pieces(maps, x, on_progress) if whole is None else [whole]
    with suppress(OSError):  # the disk is full or read-only: the next run computes them again
        write_cache_file(path, array_blocks(shape, (part.to(x.dtype).cpu().numpy() for part in parts)))
        found = read_cached_features(path, tried, x)
    found = whole if found is None else found
    return compute_features(maps, x, on_progress) if found is None else found


def read_cached_features(path: Path, maps: FeatureMaps, x: Rows) -> Tensor | None:
    """Map the features in a cached file into memory.

    None if no file can be trusted.
    """
    if not is_intact(path):
        return None
    try:
        # Copy on write: PyTorch has no read-only tensors.
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


def describe_arithmetic(x: Rows) -> str:
    """Describe what the bits of products depend on, beside the numbers.

    This is the type, device, threads and processor.
    """
    return f"{x.dtype} {x.device} {torch.get_num_threads()} {torch.backends.cpu.get_cpu_capability()}"


def describe_maps(maps: FeatureMaps) -> list[str]:
    """Describe what the output of some maps depends on.

    This is their names, versions, options, code and weights, and the version of PyTorch.
    """
    return [torch.__version__, *map(describe_plugin, maps.maps), *(link.digest or "" for link in maps.links)]


def describe_plugin(plugin: Plugin) -> str:
    """Return a plugin by its name, version, options and source."""
    file = getattr(sys.modules.get(type(plugin).__module__), "__file__", None)  # none in an interactive session
    code = sha256(Path(file)) if file and Path(file).is_file() else ""
    return f"{type(plugin).__qualname__} {plugin.full_name} {plugin.model_dump_json()} {code}"


SHARED = 0.01
"""The part of a curator's inputs that may also be a client's: collections have a few pictures twice."""


@dataclass(frozen=True)
class Fitted:
    """State that was fitted for one map, and what the ledger says about it."""

    state: State
    facts: FittedFacts


FittedMaps = Mapping[int, Fitted]
"""By the place in the chain."""


def states_of(fitted: FittedMaps) -> dict[int, State]:
    """Return the states that the maps need to be bound."""
    return {place: one.state for place, one in fitted.items()}


def fit_maps(
    maps: Sequence[FeatureMap],
    facts: DataFacts,
    curator: Tensor | None,
    dtype: torch.dtype = torch.float32,
    on_progress: OnProgress | None = None,
) -> FittedMaps:
    """Fit every map that wants it, in order.

    Each is fitted to its own public inputs or to those of the curator, (m, inputs).
    """
    fitted: dict[int, Fitted] = {}
    for place, feature_map in enumerate(maps):
        if not isinstance(feature_map, FittedMap):
            continue
        front = FeatureMaps(maps[:place], facts.inputs, facts.image_shape, states_of(fitted))
        with errors_of(f"model.features.{place}", feature_map):
            own = feature_map.public_inputs(facts)
            samples, source = choose_inputs(feature_map, own, curator)
            samples = check_inputs(feature_map, samples.to(dtype), facts.inputs)
            key = digest_of(samples, *states_of(fitted).values(), *describe_maps(front), describe_plugin(feature_map))
            state = read_fitted_state(key)
            if state is None:
                inputs = map_inputs(front, samples.clone(), on_progress)
                state = check_fitted_state(feature_map, feature_map.fit(inputs))
                with suppress(OSError):  # the disk is full or read-only
                    write_cache_file(cache_path(f"{key}.safetensors"), [save_tensors(dict(state))])
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


def choose_inputs(
    feature_map: FittedMap, own: Tensor | None, curator: Tensor | None
) -> tuple[Tensor, Literal["public", "curator"]]:
    """Return the inputs to fit a map to, and their source."""
    if own is not None:
        return own, "public"
    if curator is None:
        raise OptionError(
            "type",
            f"{feature_map.configured_as!r} is fitted to the inputs of a trusted curator, and there are none: set "
            "reserve.curator, or options with which it brings its own",
        )
    return curator, "curator"


def check_inputs(feature_map: FittedMap, samples: Tensor, inputs: int) -> Tensor:
    """Return the inputs, or raise `PluginFailure` if they do not fit.

    They must be finite, (samples, `inputs`), with at least one sample.
    """
    if samples.ndim != 2 or samples.shape[1] != inputs or not len(samples) or not bool(samples.isfinite().all()):
        raise PluginFailure(
            f"feature map {feature_map.full_name}: public_inputs() must be finite numbers of shape (samples, "
            f"{inputs}), found {tuple(samples.shape)}"
        )
    return samples


def check_fitted_state(feature_map: FittedMap, state: object) -> State:
    """Return the state of a map, or raise `PluginFailure`.

    The state must be finite tensors by name.
    """
    if not isinstance(state, Mapping) or not all(
        isinstance(name, str) and isinstance(tensor, torch.Tensor) and bool(tensor.isfinite().all())
        for name, tensor in state.items()
    ):
        raise PluginFailure(f"feature map {feature_map.full_name}: fit() must return finite tensors by name")
    return {name: tensor.detach().cpu().contiguous() for name, tensor in sorted(state.items())}


def read_fitted_state(key: str) -> State | None:
    """Return what was fitted to the same inputs before.

    It comes from the user's cache. None if the cache has nothing.
    """
    path = cache_path(f"{key}.safetensors")
    if not is_intact(path):
        return None
    try:
        state: State = load_tensors(path.read_bytes()[:-CHECKSUM_BYTES])
    except (OSError, SafetensorError):
        return None
    return state


def check_apart(curator: Tensor, *others: Rows) -> None:
    """Raise `ConfigError` if a curator shares inputs with clients or tests.

    Clients are not trusted. A share of at most `SHARED` inputs may coincide.
    """
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


SAMPLED = 16
"""On how many inputs the promises of feature maps are tried before a run."""
REORDERING_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-9}
"""By how much, relatively, sums in another order may change what a feature map returns."""


def check_maps(maps: FeatureMaps, x: Rows) -> None:
    """Check that feature maps are functions of single inputs.

    They must also keep to their Lipschitz constant. They must answer the same again, and the same for every input by
    itself.
    """
    if not maps.links:
        return
    some = x[:: max(1, len(x) // SAMPLED)][:SAMPLED]
    together = maps(some)
    again = maps(some)
    alone = torch.cat([maps(one[None]) for one in some])
    reach = REORDERING_TOLERANCE[x.dtype] * torch.linalg.vector_norm(together, dim=-1)
    if not torch.equal(together, again) or (torch.linalg.vector_norm(together - alone, dim=-1) > reach).any():
        raise PluginFailure(
            f"feature maps {maps.names}: an input is mapped differently the second time, or beside other inputs: a map "
            "must be a function of the input alone"
        )
    first = maps.links[0]
    if maps.maps[0].batch_independent and not torch.equal(
        first(some), torch.cat([first(one) for one in some.split(1)])
    ):
        raise PluginFailure(
            f"feature map {maps.maps[0].full_name}: says that it is batch_independent, but an input alone is mapped to "
            "other bits than beside others: compute in batches of one fixed size"
        )
    check_lipschitz(maps, some.roll(1, 0), some, together.roll(1, 0), together)


def check_lipschitz(maps: FeatureMaps, before: Tensor, after: Tensor, clean: Tensor, dirty: Tensor) -> None:
    """Check `||f(a) - f(b)|| <= L ||a - b||` for some inputs.

    `before` and `after` are rows of inputs; `clean` and `dirty` are what the maps made of them.
    """
    if maps.lipschitz is None:
        return
    lengths = torch.linalg.vector_norm(clean, dim=-1) + torch.linalg.vector_norm(dirty, dim=-1)
    moved = torch.linalg.vector_norm(dirty - clean, dim=-1)
    limit = torch.linalg.vector_norm(after - before, dim=-1)
    over = moved - maps.lipschitz * limit - REORDERING_TOLERANCE[before.dtype] * lengths
    if (over > 0).any():
        row = int(over.argmax())
        raise PluginFailure(
            f"feature maps {maps.names}: inputs {float(limit[row]):.3g} apart are {float(moved[row]):.3g} apart behind "
            f"them, which their Lipschitz constant {maps.lipschitz:.3g} rules out: correct it"
        )
