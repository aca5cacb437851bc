"""Samples of a user's file or program, and the dataset that they become."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import AfterValidator

from crfl_core.extend import Data, DataError, Domain

ROWS_PER_BLOCK = 4096
LARGEST_FLOAT32 = float(np.finfo(np.float32).max)
"""Numbers beyond are infinite in single precision, in which inputs are kept."""


LARGEST_EXACT_INTEGER = 2.0**53
"""Floating-point numbers beyond may stand for one of several whole numbers."""


def check_rising(ends: tuple[float, float]) -> tuple[float, float]:
    """Check that a range has its smaller end first."""
    if not ends[0] < ends[1]:
        raise ValueError(f"must be [smallest, largest], found {list(ends)}")
    return ends


Range = Annotated[tuple[float, float], AfterValidator(check_rising)]
"""The smallest and the largest valid input."""


def check_distinct(names: tuple[str, ...]) -> tuple[str, ...]:
    """Check that no name occurs twice."""
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"must differ, but there are {names.count(name)} called {name!r}")
    return names


ClassNames = Annotated[tuple[str, ...], AfterValidator(check_distinct)]
"""The names of classes, in the order of their numbers."""


@dataclass(frozen=True)
class Samples:
    """Inputs (samples, features), each with a label and perhaps an owner: numbers or text.

    `origin` says where they come from and `first` is the number of the first sample there.
    """

    origin: str
    x: NDArray[np.generic]
    labels: NDArray[np.generic]
    owners: NDArray[np.generic] | None = None
    image_shape: tuple[int, ...] | None = None
    first: int = 0

    def describe_place(self, sample: int) -> str:
        """Describe where a sample is found."""
        return f"{self.origin}, {'row' if self.first else 'sample'} {self.first + sample}"

    def check_inputs(self, domain: Domain) -> NDArray[np.generic]:
        """Return the inputs if they are valid.

        Raises `DataError` unless all are finite numbers within the domain.
        """
        if self.x.dtype.kind not in "biuf":
            raise DataError(f"{self.origin}: inputs must be numbers, found an array of {self.x.dtype}")
        for start in range(0, len(self.x), ROWS_PER_BLOCK):
            block = self.x[start : start + ROWS_PER_BLOCK]
            outside = domain.outside(block)
            if outside.any():
                row, feature = np.argwhere(outside)[0]
                finite = not Domain().outside(block[row, feature, None]).any()
                inside = f"a number in the domain [{domain.low:g}, {domain.high:g}]"
                raise DataError(
                    f"{self.describe_place(start + row)}, feature {feature}: holds {block[row, feature]} where "
                    f"{inside if finite else 'a finite number'} is needed: correct it or remove the sample"
                )
        return self.x

    def integer_labels(self) -> NDArray[np.generic]:
        """Return the labels; whole numbers in floating point become integers."""
        if self.labels.dtype.kind != "f":
            return self.labels
        with np.errstate(invalid="ignore"):  # infinite ones have no remainder
            labels = self.labels.astype(np.float64)
            whole = (labels % 1.0 == 0.0) & (np.abs(labels) < LARGEST_EXACT_INTEGER)
        if not whole.all():
            row = int(np.argmin(whole))
            raise DataError(f"{self.describe_place(row)}: the label {self.labels[row]} is not a whole number")
        return self.labels.astype(np.int64)


def samples_from_arrays(
    origin: str, inputs: ArrayLike, labels: ArrayLike, owners: ArrayLike | None = None, first: int = 0
) -> Samples:
    """Build samples from arrays.

    Inputs are (samples, ...) and flattened; each has one label, and may have an owner. Inputs of three or four
    dimensions are images, with channels in the second one.
    """
    try:
        x = np.asarray(inputs)
        labels = np.asarray(labels)
        owners = None if owners is None else np.asarray(owners)
    except ValueError as error:  # lists of different lengths
        raise DataError(f"{origin}: inputs, labels and groups must be arrays ({error})") from error
    if not 2 <= x.ndim <= 4 or x.size == 0:
        raise DataError(f"{origin}: inputs must be (samples, features) or (samples, height, width), found {x.shape}")
    for what, values in (("labels", labels), ("groups", owners)):
        if values is not None and values.shape != (len(x),):
            raise DataError(f"{origin}: {what} must be ({len(x)},), one for each input, found {values.shape}")
        if values is not None and values.dtype.kind not in "biufU":
            raise DataError(
                f"{origin}: {what} must be numbers or text, found {describe_values(values)}: correct or remove it"
            )
        if what == "groups" and values is not None and values.dtype.kind == "f" and not np.isfinite(values).all():
            row = int(np.argmin(np.isfinite(values)))
            raise DataError(f"{origin}: {what} must be finite, sample {row} has {values[row]}: correct or remove it")
    shape = x.shape[1:] if x.ndim in (3, 4) else None
    samples = Samples(origin, x.reshape(len(x), -1), labels, owners, shape, first)
    return replace(samples, labels=samples.integer_labels())


def describe_values(values: NDArray[np.generic]) -> str:
    """Describe values of an unsupported type.

    The text is the first missing value, or the type.
    """
    missing = [row for row, value in enumerate(values) if value is None]
    return f"none at sample {missing[0]}" if missing else f"an array of {values.dtype}"


class DeclaredFacts(NamedTuple):
    """Facts that the user declares about samples; the others are read from the samples."""

    class_names: Sequence[str] = ()
    feature_names: tuple[str, ...] = ()
    domain: tuple[float, float] | None = None
    image_shape: tuple[int, ...] | None = None


def make_dataset(
    train: Samples,
    test: Samples | None,
    split: Callable[[int], tuple[NDArray[np.int64], NDArray[np.int64]]],
    declared: DeclaredFacts,
) -> Data:
    """Build a dataset from training samples and test samples.

    Without test samples, `split` divides the training samples.

    Bytes are pixel values, of the domain 0..255, unless a domain is given.
    """
    box = Domain(*(declared.domain or ((0.0, 255.0) if train.x.dtype == np.uint8 else ())))
    x = train.check_inputs(box)
    shape = declared.image_shape or train.image_shape
    if shape is not None and np.prod(shape) != x.shape[1]:
        raise DataError(
            f"{train.origin}: {x.shape[1]} features are not an image of shape {list(shape)}: set image_shape"
        )
    if test is not None and test.x.shape[1] != x.shape[1]:
        raise DataError(f"{test.origin}: has {test.x.shape[1]} features, but {train.origin} has {x.shape[1]}")
    names = tuple(declared.class_names) or find_classes([train] if test is None else [train, test])
    y = class_numbers(train, names)
    owners, groups = (None, None) if train.owners is None else np.unique(train.owners, return_inverse=True)
    if test is None:
        rows, held_out = split(len(x))
        x, y, test_x, test_y = x[rows], y[rows], x[held_out], y[held_out]
        groups = None if groups is None else groups[rows]
    else:
        test_x = test.check_inputs(box)
        test_y = class_numbers(test, names)
    return Data(
        x=x,
        y=y,
        test_x=test_x,
        test_y=test_y,
        domain=box,
        class_names=names,
        feature_names=declared.feature_names,
        image_shape=shape,
        groups=groups,
        group_names=() if owners is None else tuple(map(str, owners)),
        classes_found=not declared.class_names,
    )


def find_classes(parts: Sequence[Samples]) -> tuple[str, ...]:
    """Find the classes of some samples.

    They are the sorted text labels, or the numbers from 0 to the largest.

    A number that no sample has is an error: more often than not the labels are codes.
    """
    if len({part.labels.dtype.kind == "U" for part in parts}) > 1:
        raise DataError(
            f"{' and '.join(part.origin for part in parts)}: labels are text in one and numbers in the other"
        )
    if parts[0].labels.dtype.kind == "U":
        return tuple(sorted({str(label) for part in parts for label in np.unique(part.labels)}))
    largest = max(int(part.labels.max()) for part in parts)
    if largest >= sum(len(part.labels) for part in parts):
        raise DataError(
            f"{parts[0].origin}: the largest label is {largest}, beyond the number of samples: number classes from "
            "0, or store labels as text"
        )
    found = np.unique(np.concatenate([part.labels for part in parts]))
    if found[0] >= 0 and len(found) <= largest:
        missing = min(set(range(largest)) - set(found.tolist()))
        raise DataError(
            f"{parts[0].origin}: no sample has the label {missing}, though the largest is {largest}: number the "
            f"{len(found)} classes from 0 on, or name all of them in class_names"
        )
    return tuple(str(number) for number in range(largest + 1))


def class_numbers(samples: Samples, names: Sequence[str]) -> NDArray[np.int64]:
    """Return the class number of each sample.

    Labels are these numbers or names.
    """
    labels = samples.labels
    if labels.dtype.kind == "U":
        values, codes = np.unique(labels, return_inverse=True)
        numbers = np.array([names.index(value) if value in names else -1 for value in values])[codes]
    else:
        numbers = labels.astype(np.int64)
    outside = (numbers < 0) | (numbers >= len(names))
    if outside.any():
        row = int(np.argmax(outside))
        raise DataError(
            f"{samples.describe_place(row)}: the label {labels[row]} is not a class: there are {len(names)}, numbered "
            f"from 0, called {', '.join(names[:20])}: correct it, or name all classes in class_names"
        )
    return numbers
