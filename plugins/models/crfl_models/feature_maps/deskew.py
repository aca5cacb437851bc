"""Feature map `deskew`: a shear makes slanted handwriting upright."""

from __future__ import annotations

import torch
from torch import Tensor

from crfl_core.extend import BoundMap, ImageMap, OptionError

SMALLEST_SPREAD = 1e-3
"""Added to the variance of the rows in square pixels, so that a single row of ink is not sheared without end."""


class BoundDeskew(BoundMap):
    """Shears and shifts grey images of one height and width."""

    lipschitz = None
    image_shape: tuple[int, int, int]

    def __init__(self, height: int, width: int) -> None:
        self.outputs = height * width
        self.image_shape = (1, height, width)

    def __call__(self, x: Tensor) -> Tensor:
        """Shear and shift images, (..., height width) -> the same shape."""
        flat = x.reshape(-1, self.outputs)
        rows, columns = self._sources(flat)
        above = rows.floor()
        left = columns.floor()
        down = rows - above
        right = columns - left
        result = torch.zeros_like(flat).view(columns.shape)
        for row, vertical in ((above, 1 - down), (above + 1, down)):
            for column, horizontal in ((left, 1 - right), (left + 1, right)):
                result += vertical * horizontal * self._pixels(flat, row, column)
        return result.reshape(x.shape)

    def norm_bound(self, inputs: float) -> float:
        """Return the bound on the input.

        Interpolation between shifts is a convex combination, and shifts only lose pixels.
        """
        return inputs

    def _sources(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        """Compute where each pixel is read.

        The rows are (m, height, 1), the columns are (m, height, width).
        """
        _, height, width = self.image_shape
        ink = flat.clamp(min=0).view(-1, height, width)
        ink = ink / ink.amax((1, 2), keepdim=True).clamp(min=torch.finfo(flat.dtype).tiny)
        total = ink.sum((1, 2)).clamp(min=1.0)  # the darkest pixel counts 1; without any ink nothing is moved
        y, x = (torch.arange(size).to(flat) - (size - 1) / 2 for size in (height, width))
        centre_y = ink.sum(2) @ y / total
        centre_x = ink.sum(1) @ x / total
        from_y = y - centre_y[:, None]
        from_x = x - centre_x[:, None]
        along_rows = (ink.sum(2) * from_y.square()).sum(1) / total
        mixed = ((ink @ from_x[:, :, None])[..., 0] * from_y).sum(1) / total
        shear = mixed / (along_rows + SMALLEST_SPREAD)
        rows = (y + centre_y[:, None] + (height - 1) / 2)[:, :, None]
        columns = x + centre_x[:, None, None] + shear[:, None, None] * y[:, None] + (width - 1) / 2
        return rows, columns

    def _pixels(self, flat: Tensor, row: Tensor, column: Tensor) -> Tensor:
        """Read the pixels at whole coordinates, (m, height, width).

        Pixels outside of the image are 0.
        """
        _, height, width = self.image_shape
        inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        places = row.clamp(0, height - 1) * width + column.clamp(0, width - 1)
        return flat.gather(1, places.long().flatten(1)).view(column.shape) * inside


class Deskew(ImageMap):
    """Makes slanted digits upright: a shear by the image's own moments, with its centre of mass in the middle.

    With centre (cx, cy) and second moments mu of the (non-negative) pixels, the output at (x, y) from the middle is
    read at `(cx + x + y mu11 / (mu02 + 1e-3), cy + y)`, between pixels bilinearly, 0 outside. No output is longer than
    its input: every row is a convex combination of shifted rows, with the same weights for all rows. There is no
    Lipschitz constant, since faint images have any moments.
    """

    def bind_image(self, shape: tuple[int, ...]) -> BoundMap:
        """Keep the shape."""
        channels, height, width = shape
        if channels != 1:
            raise OptionError(
                "type",
                f"{self.configured_as!r} needs grey images, found {channels} x {height} x {width} numbers: put it in "
                "front of other maps",
            )
        return BoundDeskew(height, width)
