"""Checks of feature maps: shapes, norms and distances."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from crfl_core.errors import OptionError
from crfl_core.plugin_api.feature_map import BoundMap, FeatureMap, FittedMap, ImageMap
from crfl_core.plugin_api.feature_map import bind_map as bound_to
from crfl_core.records.array_bytes import digest_of
from crfl_core.testing.suite import Case, CheckFailed, Skipped, check_for, usage_of

NORM_TOLERANCE = 1e-9
SHAPES: tuple[tuple[int, ...], ...] = ((1, 8, 8), (7,), (1, 1, 1), (6, 2, 3))
SCALES = (1e-6, 1e-2, 0.3, 1.0, 3.0, 100.0, 1e6)


@usage_of(FeatureMap)
def use_feature_map(feature_map: FeatureMap, _: Case[FeatureMap]) -> list[object]:
    """Map some inputs; return features and the declared facts."""
    return [
        (bound(random_inputs(size)), bound.outputs, bound.lipschitz) for size, bound in bind_maps(Case(feature_map))
    ]


@check_for(FeatureMap)
def check_keeps_shapes(case: Case[FeatureMap]) -> None:
    """(..., inputs) becomes (..., outputs) in the same precision, and the inputs stay as they were."""
    for size, bound in bind_maps(case):
        for dtype in (torch.float64, torch.float32):
            x = random_inputs(size).to(dtype).reshape(2, -1, size)
            before = x.clone()
            y = bound(x)
            if y.shape != (*x.shape[:-1], bound.outputs) or y.dtype != dtype:
                raise CheckFailed(
                    f"shape {(*x.shape[:-1], bound.outputs)} in {dtype}",
                    f"{tuple(y.shape)} in {y.dtype}",
                    "map the last axis only, with constants converted by .to(x)",
                )
            if bound.image_shape is not None and math.prod(bound.image_shape) != bound.outputs:
                raise CheckFailed(
                    f"an image_shape of {bound.outputs} numbers", str(bound.image_shape), "correct image_shape"
                )
            if not torch.equal(x, before):
                raise CheckFailed("unchanged inputs", "inputs changed in place", "work on a copy")
            if not bool(torch.isfinite(y).all()):
                raise CheckFailed("finite features", "NaN or infinity", "guard divisions by a zero norm")


@check_for(FeatureMap)
def check_samples_do_not_touch_each_other(case: Case[FeatureMap]) -> None:
    """What becomes of an input depends on this input alone: a map is public and fixed, not fitted to a batch."""
    for size, bound in bind_maps(case):
        x = random_inputs(size)
        alone = bound(x[:1])
        together = bound(x)[:1]
        if float((alone - together).abs().max()) > 1e-9 * (1 + float(together.abs().max())):
            raise CheckFailed("the same features alone and in a batch", "others", "use no statistics of the batch")


@check_for(FeatureMap)
def check_norm_bound_holds(case: Case[FeatureMap]) -> None:
    """No input of norm up to r has features longer than `norm_bound(r)`."""
    for size, bound in bind_maps(case):
        for x in inputs_of_many_norms(size):
            norm = float(x.norm())
            found = float(bound(x).norm())
            if not found <= bound.norm_bound(norm) * (1 + NORM_TOLERANCE) + 1e-12:
                raise CheckFailed(
                    f"features of norm at most {bound.norm_bound(norm):.6g} for an input of norm {norm:.6g}",
                    f"{found:.6g}",
                    "correct norm_bound(): certificates rely on it",
                )


@check_for(FeatureMap)
def check_norm_bound_is_monotone(case: Case[FeatureMap]) -> None:
    """`norm_bound` is defined for every norm, infinity included, and never falls."""
    for _, bound in bind_maps(case):
        values = [bound.norm_bound(norm) for norm in (0.0, *SCALES, math.inf)]
        if any(math.isnan(value) or value < 0 for value in values) or values != sorted(values):
            raise CheckFailed("bounds from 0 on that never fall", str(values), "return math.inf where nothing is known")


@check_for(FeatureMap)
def check_lipschitz_constant_holds(case: Case[FeatureMap]) -> None:
    """Two inputs never get farther apart than `lipschitz` times their distance."""
    for size, bound in bind_maps(case):
        if bound.lipschitz is None:
            raise Skipped("it declares no Lipschitz constant")
        if not bound.lipschitz >= 0 or math.isinf(bound.lipschitz):
            raise CheckFailed("a finite constant or None", str(bound.lipschitz), "declare lipschitz = None")
        for x in inputs_of_many_norms(size):
            for step in SCALES:
                other = x + step * torch.nn.functional.normalize(torch.flip(x, [0]) + 0.1, dim=0)
                apart = float((bound(x) - bound(other)).norm())
                before = float((x - other).norm())
                slack = 1e-12 * (1 + float(x.norm())) * (1 + bound.lipschitz)  # of differences of long vectors
                if apart > bound.lipschitz * before * (1 + NORM_TOLERANCE) + slack:
                    raise CheckFailed(
                        f"a distance of at most {bound.lipschitz:.6g} x {before:.6g}",
                        f"{apart:.6g}, which is {apart / before:.6g} x",
                        "declare a larger `lipschitz`, or None: the feature level relies on it",
                    )


@check_for(FeatureMap)
def check_fitting_twice_gives_the_same(case: Case[FeatureMap]) -> None:
    """What is fitted depends on the samples alone, so that others can fit it again."""
    plugin = case.plugin
    if not isinstance(plugin, FittedMap):
        raise Skipped("it is not fitted")
    for shape in SHAPES:
        samples = fitting_inputs(math.prod(shape))
        try:
            first = plugin.fit(samples.clone())
        except OptionError:
            continue
        if digest_of(first) != digest_of(plugin.fit(samples.clone())):
            raise CheckFailed("the same numbers for the same samples", "others", "draw from a seed among the options")


def bind_maps(case: Case[FeatureMap]) -> Iterator[tuple[int, BoundMap]]:
    """Return the map for inputs of several sizes that it accepts."""
    found = case.once(maps_for_shapes)
    if not found:
        shapes = ", ".join(" x ".join(map(str, shape)) for shape in SHAPES)
        raise Skipped(f"its options fit no inputs of {shapes} features")
    return iter(found)


def maps_for_shapes(case: Case[FeatureMap]) -> list[tuple[int, BoundMap]]:
    """Bind the map to every shape that its options fit."""
    result = []
    plugin = case.plugin
    for shape in SHAPES:
        size = math.prod(shape)
        if isinstance(plugin, ImageMap) and len(shape) == 1:
            continue
        try:
            fitted = plugin.fit(fitting_inputs(size)) if isinstance(plugin, FittedMap) else None
            result.append((size, bound_to(plugin, size, shape, fitted)))
        except OptionError:
            continue
    return result


def fitting_inputs(size: int) -> Tensor:
    """Draw samples to fit to, (80, size)."""
    return torch.randn(80, size, dtype=torch.float64, generator=torch.Generator().manual_seed(size + 1))


def random_inputs(size: int) -> Tensor:
    """Draw some inputs, zero among them, (12, size)."""
    x = torch.randn(12, size, dtype=torch.float64, generator=torch.Generator().manual_seed(size))
    x[-1] = 0.0
    return x


def inputs_of_many_norms(size: int) -> Iterator[Tensor]:
    """Yield single inputs of many norms, the axes among their directions."""
    directions = torch.cat([random_inputs(size)[:6], torch.eye(size, dtype=torch.float64)[:2]])
    for direction in torch.nn.functional.normalize(directions, dim=1):
        for scale in SCALES:
            yield scale * direction
