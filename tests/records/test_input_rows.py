"""Norms of inputs of any size: squares neither underflow nor overflow."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from crfl_core.records.input_rows import norms_of, scaled_norms

SIZES = {torch.float64: range(-323, 308, 7), torch.float32: range(-44, 38, 2)}


@pytest.mark.parametrize("dtype", SIZES)
def test_the_norm_of_a_row_is_right_to_a_few_roundings_whatever_its_size(dtype: torch.dtype) -> None:
    generator = np.random.default_rng(0)
    numbers = torch.finfo(dtype)
    for exponent in SIZES[dtype]:
        row = generator.uniform(-2.0, 2.0, size=7) * 10.0 ** (exponent / 2) * 10.0 ** (exponent / 2)
        values = torch.from_numpy(row).to(dtype)[None]
        square = sum(Fraction(value) ** 2 for value in values[0].tolist())
        found = Fraction(float(scaled_norms(values)[0]))
        smallest = Fraction(numbers.tiny) * Fraction(numbers.eps)  # what one rounding of a denormal number is off by
        for error, sign in ((8 * Fraction(numbers.eps), 1), (-8 * Fraction(numbers.eps), -1)):
            bound = max(found * (1 + error) + 2 * sign * smallest, Fraction(0))
            assert (bound**2 - square) * sign >= 0


def test_ordinary_rows_have_the_norm_that_torch_computes() -> None:
    x = torch.randn(50, 64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(scaled_norms(x, torch.float64), torch.linalg.vector_norm(x, dim=-1, dtype=torch.float64))
    np.testing.assert_array_equal(norms_of(x), torch.linalg.vector_norm(x, dim=-1, dtype=torch.float64).numpy())


def test_a_norm_is_infinite_only_beyond_the_largest_number() -> None:
    rows = torch.tensor([[1e308, 1e308], [1.7e308, 1.7e308], [math.inf, 1.0], [0.0, 0.0]], dtype=torch.float64)
    assert scaled_norms(rows).tolist() == pytest.approx([math.sqrt(2.0) * 1e308, math.inf, math.inf, 0.0])
    assert scaled_norms(torch.tensor([[math.nan, 1.0]])).isnan().all()
