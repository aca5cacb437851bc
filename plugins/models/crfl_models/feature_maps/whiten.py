"""Feature map `whiten`: directions in which public images differ are brought to one length."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from scipy.linalg import eigh
from torch import Tensor

from crfl_core.extend import BoundMap, DataFacts, FittedMap, OptionError, State, Streams

MIN_RELATIVE_VARIANCE = 1e-9
"""Directions of less than this part of the largest variance are rounding errors."""


class BoundWhiten(BoundMap):
    """`z / max(||z||, radius)` for `z = directions (x - mean)`; on the sphere if there is no radius."""

    def __init__(self, fitted: State, radius: float | None) -> None:
        self._mean = fitted["mean"]
        self._directions = fitted["directions"]
        self._radius = radius
        self.outputs = len(self._directions)
        self._stretch = float(torch.linalg.matrix_norm(self._directions, 2))
        self.lipschitz = None if radius is None else self._stretch / radius

    def __call__(self, x: Tensor) -> Tensor:
        """Map (..., inputs) -> (..., components)."""
        z = (x - self._mean.to(x)) @ self._directions.to(x).T
        norms: Tensor = torch.linalg.vector_norm(z, dim=-1, keepdim=True)
        if self._radius is not None:
            return z / norms.clamp(min=self._radius)
        return torch.where(norms > 0, z / norms, z)

    def norm_bound(self, inputs: float) -> float:
        """Return 1, or less for short inputs.

        Inputs are short if all stay inside the ball.
        """
        if self._radius is None:
            return 1.0
        return min(1.0, self._stretch * (inputs + float(self._mean.norm())) / self._radius)


class Whiten(FittedMap):
    """Centres features and brings the directions in which public images differ most to one length; norm at most 1.

    With mean m, eigenvalues e (largest first) and eigenvectors V of the covariance of the public images, as they come
    out of the maps in front: `z = V_k^T (x - m) / sqrt(e + e_q)` for the first k, then `z / ||z||`. Adding eigenvalue
    number q keeps weak directions from being blown up. The images are seeded strokes of a pen, which need no trust, or
    those of a curator, whom the audit then calls trusted by assumption.
    """

    on: Literal["strokes", "curator"] = Field(
        "strokes", description="the images: drawn from `seed`, or those of the trusted `reserve.curator`"
    )
    components: int = Field(500, ge=1, description="k: how many directions are kept")
    floor: int = Field(60, ge=0, description="q: the eigenvalue, counted from 0, that is added to all")
    radius: float | None = Field(
        None,
        gt=0,
        description="divide by max(||z||, radius), which has a Lipschitz constant; unset: every output has norm 1",
    )
    samples: int = Field(3000, ge=2, description="number of strokes")
    seed: int = Field(0, ge=0, description="seed of the strokes, which are public")

    def public_inputs(self, facts: DataFacts) -> Tensor | None:
        """Draw strokes in the shape and the domain of the data."""
        if self.on == "curator":
            return None
        if facts.image_shape is None:
            raise OptionError("on", f"strokes are images, found {facts.inputs} features of no shape: use 'curator'")
        *colours, height, width = facts.image_shape
        images = torch.from_numpy(draw_strokes(self.samples, height, width, self.seed)).repeat(1, math.prod(colours))
        low = facts.domain.low
        high = facts.domain.high
        return low + (high - low) * images if math.isfinite(high - low) else images

    def fit(self, samples: Tensor) -> State:
        """Compute `mean` (d,) and `directions` (k, d), in double precision."""
        x = samples.double().cpu().numpy()
        mean = x.mean(0)
        x = x - mean
        wide = x.shape[0] < x.shape[1]
        gram = (x @ x.T if wide else x.T @ x) / len(x)
        wanted = max(self.components, self.floor + 1)
        if wanted > len(gram):
            option = "components" if self.components > self.floor else "floor"
            raise OptionError(option, f"{len(x)} images of {x.shape[1]} features have at most {len(gram)} directions")
        variances, vectors = eigh(gram, subset_by_index=[len(gram) - wanted, len(gram) - 1])
        variances = variances[::-1]
        vectors = vectors[:, ::-1][:, : self.components]
        if (known := int((variances > MIN_RELATIVE_VARIANCE * variances[0]).sum())) < wanted:
            option = "components" if known < self.components else "floor"
            raise OptionError(option, f"the {len(x)} images differ in {known} directions only: choose less")
        directions = (x.T @ vectors if wide else vectors).T
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        directions /= np.sqrt(variances[: self.components, None] + variances[self.floor])
        return {"mean": torch.from_numpy(mean), "directions": torch.from_numpy(np.ascontiguousarray(directions))}

    def bind_fitted(self, inputs: int, fitted: State) -> BoundMap:
        """Return the map, with one feature for each component."""
        if len(fitted["mean"]) != inputs:
            raise OptionError("type", f"was fitted to {len(fitted['mean'])} features, found {inputs}: fit it again")
        return BoundWhiten(fitted, self.radius)


MAX_CURVES = 3
"""Most curves in one image; each begins where the last one ended."""
POINTS_PER_CURVE = 24
"""Points along a curve at which the pen is put down."""
IMAGES_PER_BATCH = 100


def draw_strokes(count: int, height: int, width: int, seed: int) -> NDArray[np.float64]:
    """Draw grey images of one to three joined Bezier curves.

    The images have the shape (count, height width) and values from 0 to 1. Curves keep to the middle of the image, as
    digits do; the pen is 2 to 4 % of the image's side wide. The same arguments give the same images, and the first ones
    are the same for every count.
    """
    generator = Streams(seed).generator("data/strokes")
    blocks = [draw_images(generator, height, width) for _ in range(0, count, IMAGES_PER_BATCH)]
    return np.concatenate(blocks)[:count]


def draw_images(generator: np.random.Generator, height: int, width: int) -> NDArray[np.float64]:
    """Draw one batch of images."""
    points, shown = pen_trails(generator)
    side = min(height, width)
    pens = generator.uniform(0.02, 0.04, (IMAGES_PER_BATCH, 1)) * side
    rows = (points[..., 0] - 0.5) * side + (height - 1) / 2
    columns = (points[..., 1] - 0.5) * side + (width - 1) / 2
    squares = np.full((IMAGES_PER_BATCH, height * width), np.inf)
    y, x = np.divmod(np.arange(height * width), width)
    for place in range(points.shape[1]):
        distance = (y - rows[:, place, None]) ** 2 + (x - columns[:, place, None]) ** 2
        np.minimum(squares, distance, out=squares, where=shown[:, place, None])
    # Dark within the width of the pen, then fading over one pixel.
    inked: NDArray[np.float64] = np.clip(1.0 + pens - np.sqrt(squares), 0.0, 1.0)
    return inked


def pen_trails(generator: np.random.Generator) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Draw the trails of the pen and the mask of drawn points.

    The trails are (images, MAX_CURVES POINTS_PER_CURVE, 2). Coordinates are shares of the image's side.
    """
    controls = generator.uniform(0.15, 0.85, (IMAGES_PER_BATCH, MAX_CURVES, 4, 2))
    controls[:, 1:, 0] = controls[:, :-1, 3]
    along = np.linspace(0.0, 1.0, POINTS_PER_CURVE)[:, None]
    weights = np.stack([(1 - along) ** 3, 3 * along * (1 - along) ** 2, 3 * along**2 * (1 - along), along**3])
    points = np.einsum("kpu,ickd->icpd", weights, controls).reshape(IMAGES_PER_BATCH, MAX_CURVES * POINTS_PER_CURVE, 2)
    curves = generator.integers(1, MAX_CURVES + 1, IMAGES_PER_BATCH)
    return points, np.repeat(np.arange(MAX_CURVES) < curves[:, None], POINTS_PER_CURVE, axis=1)
