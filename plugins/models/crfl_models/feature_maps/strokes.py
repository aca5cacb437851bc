"""Images of pen strokes that nobody drew: public pictures that look a little like writing."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from crfl_core.extend import Streams

CURVES = 3
"""Most curves in one image; each goes on where the last one ended."""
POINTS = 24
"""Points along a curve at which the pen is put down."""
IMAGES_AT_ONCE = 100


def strokes(count: int, height: int, width: int, seed: int) -> NDArray[np.float64]:
    """Grey images of one to three joined Bezier curves each, (count, height width), from 0 to 1.

    Curves keep to the middle of the image, as digits do; the pen is 2 to 4 % of the image's side wide. The same images
    for the same arguments, and the first ones are the same for every count.
    """
    generator = Streams(seed).generator("data/strokes")
    blocks = [drawn(generator, height, width) for _ in range(0, count, IMAGES_AT_ONCE)]
    return np.concatenate(blocks)[:count]


def drawn(generator: np.random.Generator, height: int, width: int) -> NDArray[np.float64]:
    """As many images as are drawn at once."""
    points, shown = trails(generator)
    side = min(height, width)
    pens = generator.uniform(0.02, 0.04, (IMAGES_AT_ONCE, 1)) * side
    rows = (points[..., 0] - 0.5) * side + (height - 1) / 2
    columns = (points[..., 1] - 0.5) * side + (width - 1) / 2
    squares = np.full((IMAGES_AT_ONCE, height * width), np.inf)
    y, x = np.divmod(np.arange(height * width), width)
    for place in range(points.shape[1]):
        distance = (y - rows[:, place, None]) ** 2 + (x - columns[:, place, None]) ** 2
        np.minimum(squares, distance, out=squares, where=shown[:, place, None])
    # Dark within the width of the pen, then fading over one pixel.
    inked: NDArray[np.float64] = np.clip(1.0 + pens - np.sqrt(squares), 0.0, 1.0)
    return inked


def trails(generator: np.random.Generator) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Where the pen goes, (images, CURVES POINTS, 2) as shares of the image's side, and which of it is drawn."""
    controls = generator.uniform(0.15, 0.85, (IMAGES_AT_ONCE, CURVES, 4, 2))
    controls[:, 1:, 0] = controls[:, :-1, 3]
    along = np.linspace(0.0, 1.0, POINTS)[:, None]
    weights = np.stack([(1 - along) ** 3, 3 * along * (1 - along) ** 2, 3 * along**2 * (1 - along), along**3])
    points = np.einsum("kpu,ickd->icpd", weights, controls).reshape(IMAGES_AT_ONCE, CURVES * POINTS, 2)
    curves = generator.integers(1, CURVES + 1, IMAGES_AT_ONCE)
    return points, np.repeat(np.arange(CURVES) < curves[:, None], POINTS, axis=1)
