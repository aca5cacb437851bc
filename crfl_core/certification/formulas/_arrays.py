"""Conversion of arguments: formulas take numbers, sequences or arrays, and compute in float64."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


def floats(*values: ArrayLike) -> tuple[Array, ...]:
    """Convert the arguments to float64 arrays.

    Arrays that are float64 already are not copied.
    """
    return tuple(np.asarray(value, np.float64) for value in values)
