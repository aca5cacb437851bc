"""Conversion of arguments: formulas take numbers, sequences or arrays, and compute in float64."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


def floats(*values: ArrayLike) -> tuple[Array, ...]:
    """Convert the arguments to float64 arrays.

    There is no copy if they are float64 arrays already.
    """
    return tuple(np.asarray(value, np.float64) for value in values)
