"""Types of columns are read from their annotations, however NumPy defines `NDArray`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from typing_extensions import TypeAliasType, TypeVar

from crfl_core.records.ledger_validation import dtype_of

T = TypeVar("T", bound=np.generic)
NUMBERS = "np.ndarray[tuple[int, ...], np.dtype[T]]"
ALIAS: Any = TypeAliasType("ALIAS", NUMBERS, type_params=(T,))  # type: ignore[arg-type]  # since NumPy 2.5


@pytest.mark.parametrize("scalar", [np.int64, np.float64, np.bool_])
def test_the_dtype_is_that_of_the_annotation(scalar: type[np.generic]) -> None:
    nested: Any = np.ndarray[tuple[int, ...], np.dtype[scalar]]  # type: ignore[valid-type]  # until NumPy 2.4
    for hint in (NDArray[scalar], nested, ALIAS[scalar]):  # type: ignore[valid-type]
        assert dtype_of(hint) == np.dtype(scalar)
