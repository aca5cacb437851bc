"""Datasets: where samples come from, and how they are scaled."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from crfl_core.data import Data, Domain, Scaling
from crfl_core.errors import DataError, OptionError
from crfl_core.kinds.plugin import Plugin

ScalingKind = Literal["none", "unit-range", "minmax", "standardise"]


class Dataset(Plugin):
    """Samples for training and testing. A subclass reads raw data; scaling and subsets are common to all."""

    scaling: ScalingKind = Field(
        "unit-range",
        description="none; unit-range: the raw domain to [0, 1]; minmax, standardise: fitted on the training data",
    )
    train_samples: int | None = Field(None, ge=1, description="use only so many training samples, the first ones")
    test_samples: int | None = Field(None, ge=1, description="use only so many test samples, the first ones")

    @abstractmethod
    def read(self) -> Data:
        """The raw data: every row a sample, labels 0..classes-1, and the raw `domain` of the inputs."""

    def load(self) -> Data:
        """The data that clients and certificates see: checked, cut to size, scaled."""
        data = self.read()
        check(data, type(self).__name__)
        data = replace(
            data,
            x=data.x[: self._count("train_samples", len(data.x))],
            y=data.y[: self._count("train_samples", len(data.x))],
            groups=None if data.groups is None else data.groups[: self.train_samples],
            test_x=data.test_x[: self._count("test_samples", len(data.test_x))],
            test_y=data.test_y[: self._count("test_samples", len(data.test_x))],
        )
        scaling, domain = fit(self.scaling, data)
        return replace(data, x=scaling.apply(data.x), test_x=scaling.apply(data.test_x), scaling=scaling, domain=domain)

    def _count(self, option: str, available: int) -> int:
        wanted: int | None = getattr(self, option)
        if wanted is not None and wanted > available:
            raise OptionError(option, f"found {wanted}, but there are only {available} samples")
        return available if wanted is None else wanted


def check(data: Data, name: str) -> None:
    """Raise `DataError` if arrays do not fit together, are not finite, or labels are out of range."""
    for what, x, y in (("training", data.x, data.y), ("test", data.test_x, data.test_y)):
        if x.ndim != 2 or len(x) != len(y) or len(x) == 0:
            raise DataError(
                f"dataset {name}: the {what} inputs must be (samples, features) with one label each, found "
                f"{x.shape} and {y.shape}"
            )
        if x.dtype.kind == "f" and not np.isfinite(x).all():
            row, column = np.argwhere(~np.isfinite(x))[0]
            raise DataError(
                f"dataset {name}: {what} input {row}, feature {column} is {x[row, column]}: remove or fill it"
            )
        outside = (y < 0) | (y >= len(data.class_names))
        if outside.any():
            row = int(np.argmax(outside))
            raise DataError(
                f"dataset {name}: label {y[row]} of {what} sample {row} is not within 0..{len(data.class_names) - 1}"
            )


def fit(kind: ScalingKind, data: Data) -> tuple[Scaling, Domain]:
    """The scaling of a kind for these raw data, and the domain of its outputs."""
    low, high = data.domain.low, data.domain.high
    if kind == "none":
        return Scaling(), data.domain
    if kind == "unit-range":
        if not np.isfinite([low, high]).all():
            raise OptionError("scaling", "unit-range needs a dataset with a bounded domain: use minmax or none")
        return Scaling(kind, np.array([low]), np.array([1.0 / (high - low)])), Domain(0.0, 1.0)
    x = data.x.astype(np.float64)
    if kind == "minmax":
        low_each = x.min(axis=0)
        return Scaling(kind, low_each, 1.0 / positive(x.max(axis=0) - low_each), fitted=True), Domain()
    return Scaling(kind, x.mean(axis=0), 1.0 / positive(x.std(axis=0)), fitted=True), Domain()


def positive(spread: NDArray[np.float64]) -> NDArray[np.float64]:
    """The spread of each feature, with 1 for constant ones so that they stay constant."""
    return np.where(spread > 0, spread, 1.0)
