"""Feature map `scattering`: moduli of wavelets, averaged so that small shifts do not matter."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from crfl_core.extend import BoundMap, ImageMap

CELL_PIXELS = 4
"""Pixels between two averages: 2 to the number of scales."""
IMAGES_PER_BATCH = 32
"""Images that fit into the processor's cache together with everything that is computed of them."""


class BoundScattering(BoundMap):
    """Scattering of order 2 with two scales, for images of one shape."""

    lipschitz: float

    def __init__(self, shape: tuple[int, ...], angles: int) -> None:
        channels, self._height, self._width = shape
        self._cells = -(-self._height // CELL_PIXELS), -(-self._width // CELL_PIXELS)
        paths = 1 + 2 * angles + angles**2
        self.image_shape = (channels * paths, *self._cells)
        self.outputs = math.prod(self.image_shape)
        # A square torus with a margin, so that what leaves on one side hardly returns on the other.
        self._side = side = CELL_PIXELS * max(self._cells) + CELL_PIXELS
        turns = [math.pi * turn / angles for turn in range(angles)]
        self._fine = torch.stack([morlet(side, 0.8, 3 * math.pi / 4, angle, 4 / angles) for angle in turns])
        coarse = torch.stack([morlet(side, 1.6, 3 * math.pi / 8, angle, 4 / angles) for angle in turns])
        self._coarse = coarse.view(angles, 2, side // 2, 2, side // 2) / 4
        # In the middle of every cell, by its rows and by its columns, on all pixels and on every second one.
        self._whole = [
            averaging_matrix(side, 1.6, range(CELL_PIXELS, CELL_PIXELS * cells + 1, CELL_PIXELS))
            for cells in self._cells
        ]
        self._half = [averaging_matrix(side // 2, 0.8, range(2, 2 * cells + 1, 2)) for cells in self._cells]
        self.lipschitz = self._lipschitz_constant()

    def __call__(self, x: Tensor) -> Tensor:
        """Map (..., channels height width) -> (..., channels paths cells)."""
        images = x.reshape(-1, self._height, self._width)
        pieces = [self._scatter(piece) for piece in images.split(IMAGES_PER_BATCH)]
        return torch.cat(pieces).reshape(*x.shape[:-1], self.outputs)

    def norm_bound(self, inputs: float) -> float:
        """Return the bound: an image of zeros has features of zero."""
        return self.lipschitz * inputs

    def _scatter(self, images: Tensor) -> Tensor:
        """Compute the scattering coefficients, (m, paths, rows, columns).

        They are order 0, order 1 at both scales, and order 2 from fine to coarse.
        """
        below = self._side - self._height - CELL_PIXELS // 2
        right = self._side - self._width - CELL_PIXELS // 2
        padded = torch.nn.functional.pad(images, (CELL_PIXELS // 2, right, CELL_PIXELS // 2, below))
        transformed = torch.fft.fft2(padded)
        product = torch.view_as_real(transformed)[:, None] * self._fine.to(images)[..., None]
        fine = torch.fft.ifft2(torch.view_as_complex(product)).abs()
        paths = [
            average(padded[:, None], self._whole),
            average(fine, self._whole),
            average(self._at_half_rate(transformed), self._half),
            average(self._at_half_rate(torch.fft.fft2(fine)).flatten(1, 2), self._half),
        ]
        return torch.cat(paths, 1)

    def _at_half_rate(self, transformed: Tensor) -> Tensor:
        """Compute the modulus behind every coarse wavelet at every second pixel.

        The shape is (..., angles, half, half).

        Leaving pixels out folds the spectrum: four frequencies are added up before a transform of a quarter the size.
        """
        half = self._side // 2
        parts = torch.view_as_real(transformed).unflatten(-2, (2, half)).unflatten(-4, (2, half)).unsqueeze(-6)
        filters = self._coarse.to(parts)[..., None]
        folded = parts[..., 0, :, 0, :, :] * filters[:, 0, :, 0]
        for row, column in ((0, 1), (1, 0), (1, 1)):
            folded.addcmul_(parts[..., row, :, column, :, :], filters[:, row, :, column])
        found: Tensor = torch.fft.ifft2(torch.view_as_complex(folded)).abs()
        return found

    def _lipschitz_constant(self) -> float:
        """Compute the Lipschitz constant from the norms of all paths.

        The norms are those of the linear steps on a path. The modulus brings no two points farther apart.
        """
        whole, half = (
            math.prod(float(torch.linalg.matrix_norm(side, 2)) for side in pair) ** 2
            for pair in (self._whole, self._half)
        )
        fine = operator_norm(self._fine) ** 2
        coarse = half_rate_norm(self._coarse) ** 2
        return math.sqrt(whole + coarse * half + fine * (whole + coarse * half))


class Scattering(ImageMap):
    """Wavelet scattering of order 2 at two scales (Bruna and Mallat, 2013): fixed features that are good for images.

    Moduli of convolutions with Morlet wavelets of width 0.8 and 1.6 pixels in all directions, and with the second of
    those moduli of the first, under Gaussian averages of width 1.6 pixels in the middle of every 4 x 4 pixels. An image
    of 28 x 28 pixels has (1 + 2 angles + angles^2) x 7 x 7 features; colours are treated one by one. The Lipschitz
    constant is computed from the spectra of the filters, and zeros have features of zero.
    """

    slow: ClassVar[bool] = True

    angles: int = Field(8, ge=1, le=32, description="directions of the wavelets, evenly spaced over 180 degrees")

    def bind_image(self, shape: tuple[int, ...]) -> BoundMap:
        """Return the map for images of this shape, (channels, height, width).

        Its outputs are (channels paths, height / 4, width / 4), rounded up.
        """
        return BoundScattering(shape, self.angles)


def average(maps: Tensor, averages: list[Tensor]) -> Tensor:
    """Average over rows and columns: (..., side, side) -> (..., rows, columns)."""
    rows, columns = averages
    return rows.to(maps) @ maps @ columns.to(maps).T


PERIODS = range(-3, 4)
"""Turns around the torus for which the tails of a filter are followed: they are below 1e-16 after that."""


def morlet(side: int, sigma: float, frequency: float, angle: float, slant: float) -> Tensor:
    """Compute the Fourier transform, (side, side) and real, of a Morlet wavelet.

    A wave `exp(i frequency u)` under a Gaussian of width sigma along its direction u and sigma / slant across it, minus
    as much of the Gaussian as makes the sum 0.
    """
    envelope = torch.zeros(side, side, dtype=torch.float64)
    wave = torch.zeros(side, side, dtype=torch.complex128)
    pixels = torch.arange(side, dtype=torch.float64)
    for down in PERIODS:
        for right in PERIODS:
            y = (pixels + side * down)[:, None]
            x = pixels + side * right
            along = x * math.cos(angle) + y * math.sin(angle)
            across = y * math.cos(angle) - x * math.sin(angle)
            bell = torch.exp(-(along.square() + (slant * across).square()) / (2 * sigma**2))
            envelope += bell
            wave += torch.polar(bell, frequency * along)
    wave -= envelope * (wave.sum() / envelope.sum())
    transformed: Tensor = torch.fft.fft2(wave).real  # the wavelet at -u is the conjugate of that at u
    return transformed * slant / (2 * math.pi * sigma**2)


def averaging_matrix(side: int, sigma: float, places: range) -> Tensor:
    """Return Gaussian averages around some pixels of a circle, (places, side).

    The rows sum to 1.
    """
    pixels = torch.arange(side, dtype=torch.float64)
    bell = torch.stack([torch.exp(-(pixels + side * turn).square() / (2 * sigma**2)) for turn in PERIODS]).sum(0)
    return torch.stack([bell.roll(place) for place in places]) / bell.sum()


def operator_norm(filters: Tensor) -> float:
    """Compute the largest factor by which filters lengthen a signal.

    The factor is that of convolution with all filters. Filters are (..., side, side) transforms.
    """
    return math.sqrt(float(filters.square().flatten(0, -3).sum(0).max()))


def half_rate_norm(folded: Tensor) -> float:
    """Compute the norm of filters at half the rate.

    Only every second pixel of every second row is kept. `folded` are (filters, 2, half, 2, half).

    Four frequencies of the signal become one, so the norm is the largest of a small matrix for each frequency.
    """
    matrices = folded.permute(2, 4, 0, 1, 3).flatten(-2)
    return 2 * float(torch.linalg.matrix_norm(matrices, 2).max())
