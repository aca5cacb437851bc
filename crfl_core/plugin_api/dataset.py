"""Datasets: reading, checking and scaling samples."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from crfl_core.errors import DataError, OptionError
from crfl_core.files.data_files import DataSource, UserPath, find_or_explain, is_readable_path
from crfl_core.plugin_api.base import Plugin
from crfl_core.records.inputs import Data, Domain, Scaling, row_blocks, scale_inputs

ScalingKind = Literal["none", "unit-range", "minmax", "standardise"]
"""Kind of scaling; a dataset may override the default of its option `scaling`."""


class Dataset(Plugin):
    """Samples for training and testing. A subclass reads raw data; the base class scales and cuts them."""

    scaling: ScalingKind = Field(
        "unit-range",
        description="none; unit-range: the raw domain, or the declared ranges, to [0, 1]; minmax: the range of the "
        "training data to [0, 1], beyond which inputs are clamped; standardise: mean 0 and deviation 1 of the training "
        "data, unbounded",
    )
    train_samples: int | None = Field(None, ge=1, description="training samples to use, the first ones; unset: all")
    test_samples: int | None = Field(None, ge=1, description="test samples to use, the first ones; unset: all")

    @abstractmethod
    def read(self) -> Data:
        """Read the raw data.

        Every row is a sample, labels are 0..classes-1, and `domain` is the raw domain of the inputs.
        """

    def read_inputs(self, path: Path, feature_names: tuple[str, ...]) -> NDArray[np.generic]:  # noqa: ARG002
        """Return new raw inputs, (samples, features), from a file.

        The file is like those that the dataset reads. `crfl predict` asks for them; it reads .npz and .npy files
        itself. `feature_names` are those of the training data, empty if they have none.
        """
        raise DataError(f"{path}: new inputs for this dataset are .npz or .npy files: save x with np.savez(file, x=x)")

    def load(self) -> Data:
        """Return the data that clients and certificates see.

        They are checked, cut to size and scaled.
        """
        data = self.read()
        check_data(data, type(self).__name__)
        data = replace(
            data,
            x=data.x[: self._count("train_samples", len(data.x))],
            y=data.y[: self._count("train_samples", len(data.x))],
            groups=None if data.groups is None else data.groups[: self.train_samples],
            test_x=data.test_x[: self._count("test_samples", len(data.test_x))],
            test_y=data.test_y[: self._count("test_samples", len(data.test_x))],
        )
        scaling, domain = fit_scaling(self.scaling, data)
        x = scale_inputs(data.x, scaling)
        test_x = scaling.apply(data.test_x)
        return replace(data, x=x, test_x=test_x, scaling=scaling, domain=domain)

    def _count(self, option: str, available: int) -> int:
        wanted: int | None = getattr(self, option)
        if wanted is not None and wanted > available:
            raise OptionError(option, f"found {wanted}, but there are only {available} samples")
        return available if wanted is None else wanted


class SplitDataset(Dataset):
    """Dataset without an official test set: a share of the samples is drawn for testing."""

    test_fraction: float = Field(0.2, gt=0, lt=1, description="share of the samples kept for testing")
    split_seed: int = Field(0, ge=0, description="seed of the split into training and test samples")

    def split(self, samples: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return rows for training and rows for testing, in random order."""
        order = np.random.default_rng(self.split_seed).permutation(samples)
        tests = round(samples * self.test_fraction)
        if not 0 < tests < samples:
            raise OptionError("test_fraction", f"found {self.test_fraction}: that is {tests} of {samples} samples")
        return order[tests:], order[:tests]


class FileDataset(Dataset):
    """Dataset that is read from published files, which a subclass describes."""

    path: UserPath | None = Field(
        None, description="folder with the files, or a single file; unset: $CRFL_DATA_DIR, then the user's cache"
    )

    @classmethod
    @abstractmethod
    def source(cls) -> DataSource:
        """Describe the files, their checksums, and how to get them."""

    def file(self, name: str) -> Path:
        """Find one of the files.

        Raises `DataError` with the searched places and how to get it.
        """
        if self.path is not None and not is_readable_path(self.path):
            raise OptionError("path", f"there is no file or folder {self.path}")
        return find_or_explain(self.source(), name, self.path)


def check_data(data: Data, name: str) -> None:
    """Raise `DataError` if the arrays of a dataset are wrong.

    They must fit together and stay in the domain, and labels must be in range.
    """
    for what, x, y in (("training", data.x, data.y), ("test", data.test_x, data.test_y)):
        both = isinstance(x, np.ndarray) and isinstance(y, np.ndarray)
        if not both or x.ndim != 2 or x.shape[:1] != y.shape or x.size == 0:
            raise DataError(
                f"dataset {name}: the {what} inputs must be (samples, features) with one label each, found "
                f"{np.shape(x)} and {np.shape(y)}"
            )
        if x.dtype.kind not in "biuf" or y.dtype.kind not in "iu":
            raise DataError(
                f"dataset {name}: the {what} inputs must be numbers and their labels integers, found {x.dtype} and "
                f"{y.dtype}: convert them, labels with y.astype(np.int64)"
            )
        if x.shape[1] != data.x.shape[1]:
            raise DataError(f"dataset {name}: test inputs have {x.shape[1]} features, others {data.x.shape[1]}")
        check_inputs(x, data.domain, f"dataset {name}: {what} input")
        outside = (y < 0) | (y >= len(data.class_names))
        if outside.any():
            row = int(np.argmax(outside))
            raise DataError(
                f"dataset {name}: label {y[row]} of {what} sample {row} is not within 0..{len(data.class_names) - 1}"
            )
    if len(data.class_names) < 2:
        only = ", ".join(data.class_names) or "none"
        raise DataError(f"dataset {name}: needs two classes or more, found {only}: add samples of another, or name it")
    features = data.x.shape[1]
    if data.image_shape is not None and math.prod(data.image_shape) != features:
        raise DataError(f"dataset {name}: {features} features are not an image of shape {data.image_shape}")
    if len(data.feature_names) not in (0, features):
        raise DataError(
            f"dataset {name}: {features} features need as many names or none, not {len(data.feature_names)}"
        )
    if data.ranges is not None and any(np.shape(ends) != (features,) for ends in data.ranges):
        raise DataError(
            f"dataset {name}: ranges must have a lowest and a highest value for each of {features} features"
        )
    if data.groups is not None:
        known = len(data.group_names) or np.inf
        whole = data.groups.dtype.kind in "iu"
        if not whole or data.groups.shape != data.y.shape or data.groups.min() < 0 or data.groups.max() >= known:
            raise DataError(
                f"dataset {name}: every training sample needs a group, an integer from 0 on, named if groups have names"
            )


def check_inputs(x: NDArray[np.generic], domain: Domain, place: str) -> None:
    """Raise `DataError` at the first input outside of the domain.

    Certificates rely on the norms that the domain allows.
    """
    if not domain.low < domain.high:
        raise DataError(
            f"{place}s cannot be in the domain [{domain.low:g}, {domain.high:g}]: low must be less than high"
        )
    if x.dtype == np.uint8 and domain.low <= 0 and domain.high >= 255:
        return  # all bytes are inside
    for rows in row_blocks(x):
        outside = domain.outside(x[rows])
        if outside.any():
            row, column = np.argwhere(outside)[0]
            raise DataError(
                f"{place} {rows.start + row}, feature {column} {outside_message(x[rows][row, column], domain)}"
            )


def outside_message(value: float, domain: Domain) -> str:
    """Describe what is wrong with an input, and what to do.

    The input is outside of the domain.
    """
    if Domain().outside(np.array([value])).any():
        return f"is {value}: remove or fill it"
    return f"is {value}, outside of the domain [{domain.low:g}, {domain.high:g}]: correct it, or widen the domain"


def fit_scaling(kind: ScalingKind, data: Data) -> tuple[Scaling, Domain]:
    """Return the scaling of a kind for these raw data.

    Return also the domain of its outputs.
    """
    low = data.domain.low
    high = data.domain.high
    if kind == "none":
        return Scaling(), data.domain
    if kind == "unit-range" and data.ranges is not None:
        lowest, highest = data.ranges
        return Scaling("declared", lowest, 1.0 / positive(highest - lowest)), Domain(0.0, 1.0)
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
    """Return mean and standard deviation of every column, computed block by block."""
    mean = sum(x[rows].sum(axis=0, dtype=np.float64) for rows in row_blocks(x)) / len(x)
    square = sum(np.square(np.subtract(x[rows], mean)).sum(axis=0) for rows in row_blocks(x)) / len(x)
    return mean, np.sqrt(square)


def positive(spread: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the spread of each feature, 1 for constant features.

    So constant features stay constant.
    """
    return np.where(spread >= np.finfo(np.float64).tiny, spread, 1.0)  # a smaller spread has no finite inverse
