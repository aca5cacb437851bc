"""Datasets: where samples come from, and how they are scaled."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field

from crfl_core.data import Data, Domain, Scaling, row_blocks
from crfl_core.errors import DataError, OptionError
from crfl_core.kinds.plugin import Plugin
from crfl_core.sources import DataSource, find_or_explain

ScalingKind = Literal["none", "unit-range", "minmax", "standardise"]
"""How raw inputs become scaled ones; a dataset may override the default of its option `scaling`."""


class Dataset(Plugin):
    """Samples for training and testing. A subclass reads raw data; scaling and subsets are common to all."""

    scaling: ScalingKind = Field(
        "unit-range",
        description="none; unit-range: the raw domain to [0, 1]; minmax: the range of the training data to [0, 1], "
        "beyond which inputs are clamped; standardise: mean 0 and deviation 1 of the training data, unbounded",
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


class SplitDataset(Dataset):
    """A dataset without an official test set: a share of the samples is drawn for testing."""

    test_fraction: float = Field(0.2, gt=0, lt=1, description="share of the samples kept for testing")
    split_seed: int = Field(0, ge=0, description="seed of the split into training and test samples")

    def split(self, samples: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Rows for training and rows for testing, in random order."""
        order = np.random.default_rng(self.split_seed).permutation(samples)
        tests = round(samples * self.test_fraction)
        if not 0 < tests < samples:
            raise OptionError("test_fraction", f"found {self.test_fraction}: that is {tests} of {samples} samples")
        return order[tests:], order[:tests]


def from_here(path: Path) -> Path:
    """An absolute path, so that a run can be resumed from another directory."""
    return path.expanduser().absolute()


class FileDataset(Dataset):
    """A dataset that is read from published files. A subclass describes them and reads them."""

    path: Annotated[Path, AfterValidator(from_here)] | None = Field(
        None, description="folder with the files, or a single file; unset: $CRFL_DATA_DIR, then the user's cache"
    )

    @classmethod
    @abstractmethod
    def source(cls) -> DataSource:
        """The files, their checksums, and how to get them."""

    def file(self, name: str) -> Path:
        """One of the files. Raises `DataError` with the places that were searched and how to get it."""
        if self.path is not None and not self.path.exists():
            raise OptionError("path", f"there is no file or folder {self.path}")
        return find_or_explain(self.source(), name, self.path)


def check(data: Data, name: str) -> None:
    """Raise `DataError` if arrays do not fit together, are not finite, or labels are out of range."""
    for what, x, y in (("training", data.x, data.y), ("test", data.test_x, data.test_y)):
        if x.ndim != 2 or len(x) != len(y) or len(x) == 0:
            raise DataError(
                f"dataset {name}: the {what} inputs must be (samples, features) with one label each, found "
                f"{x.shape} and {y.shape}"
            )
        for rows in row_blocks(x) if x.dtype.kind == "f" else ():
            if not np.isfinite(x[rows]).all():
                row, column = np.argwhere(~np.isfinite(x[rows]))[0]
                raise DataError(
                    f"dataset {name}: {what} input {rows.start + row}, feature {column} is {x[rows][row, column]}: "
                    "remove or fill it"
                )
        outside = (y < 0) | (y >= len(data.class_names))
        if outside.any():
            row = int(np.argmax(outside))
            raise DataError(
                f"dataset {name}: label {y[row]} of {what} sample {row} is not within 0..{len(data.class_names) - 1}"
            )
    if data.groups is not None:
        known = len(data.group_names) or np.inf
        if data.groups.shape != data.y.shape or data.groups.min() < 0 or data.groups.max() >= known:
            raise DataError(
                f"dataset {name}: every training sample needs a group, 0 or above and named if groups have names"
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
    if kind == "minmax":
        low_each, high_each = (extreme(axis=0).astype(np.float64) for extreme in (data.x.min, data.x.max))
        return Scaling(kind, low_each, 1.0 / positive(high_each - low_each), fitted=True), Domain(0.0, 1.0)
    mean, deviation = moments(data.x)
    return Scaling(kind, mean, 1.0 / positive(deviation), fitted=True), Domain()


def moments(x: NDArray[np.generic]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and standard deviation of every column, block by block."""
    mean = sum(x[rows].sum(axis=0, dtype=np.float64) for rows in row_blocks(x)) / len(x)
    square = sum(np.square(np.subtract(x[rows], mean)).sum(axis=0) for rows in row_blocks(x)) / len(x)
    return mean, np.sqrt(square)


def positive(spread: NDArray[np.float64]) -> NDArray[np.float64]:
    """The spread of each feature, with 1 for constant ones so that they stay constant."""
    return np.where(spread > 0, spread, 1.0)
