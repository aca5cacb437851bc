"""Data of a user's own, as the dataset `arrays` calls for them."""

from __future__ import annotations

from crfl_core.extend import Data
from crfl_core.testing.samples import Spots


def spots() -> Data:
    return Spots(samples=100, classes=3).read()
