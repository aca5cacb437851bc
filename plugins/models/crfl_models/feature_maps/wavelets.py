"""Filters of the scattering transform, on a torus of pixels; everything in double precision."""

from __future__ import annotations

import math

import torch
from torch import Tensor

PERIODS = range(-3, 4)
"""How many times around the torus the tails of a filter are followed: they are below 1e-16 after that."""


def morlet(side: int, sigma: float, frequency: float, angle: float, slant: float) -> Tensor:
    """The Fourier transform, (side, side) and real, of a Morlet wavelet.

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


def averages(side: int, sigma: float, places: range) -> Tensor:
    """Gaussian averages around some pixels of a circle, one row each, (places, side); every row sums to 1."""
    pixels = torch.arange(side, dtype=torch.float64)
    bell = torch.stack([torch.exp(-(pixels + side * turn).square() / (2 * sigma**2)) for turn in PERIODS]).sum(0)
    return torch.stack([bell.roll(place) for place in places]) / bell.sum()


def operator_norm(filters: Tensor) -> float:
    """The largest factor by which convolution with all filters, (..., side, side) transforms, can lengthen a signal."""
    return math.sqrt(float(filters.square().flatten(0, -3).sum(0).max()))


def half_rate_norm(folded: Tensor) -> float:
    """The same if only every second pixel of every second row is kept; `folded` are (filters, 2, half, 2, half).

    Four frequencies of the signal become one, so the norm is the largest of a small matrix for each frequency.
    """
    matrices = folded.permute(2, 4, 0, 1, 3).flatten(-2)
    return 2 * float(torch.linalg.matrix_norm(matrices, 2).max())
