"""Checks of datasets: arrays, labels, domain, subsets and scaling."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from crfl_core.errors import DataError, OptionError
from crfl_core.plugin_api.dataset import Dataset, fit_scaling
from crfl_core.testing.suite import Case, CheckFailed, Skipped, check_for, usage_of

if TYPE_CHECKING:
    from crfl_core.records.inputs import Data, Domain

INPUT_TOLERANCE = 1e-6


UNREADABLE = (DataError, OptionError, OSError, ImportError)
"""Errors of missing files or packages: not a fault of the plugin, so the check is skipped."""


@usage_of(Dataset)
def use_dataset(dataset: Dataset, _: Case[Dataset]) -> Data:
    """Load the scaled data."""
    try:
        return dataset.load()
    except UNREADABLE as error:
        raise Skipped(f"its data cannot be read here: {error}") from error


def read_raw(case: Case[Dataset]) -> Data:
    """Read the raw data."""
    try:
        return case.plugin.read()
    except UNREADABLE as error:
        raise Skipped(f"its data cannot be read here: {error}") from error


def load_and_scale(case: Case[Dataset]) -> Data:
    """Load the scaled data.

    Errors are the plugin's fault if the raw data can be read.
    """
    case.once(read_raw)
    return case.plugin.load()


@check_for(Dataset)
def check_arrays_fit_together(case: Case[Dataset]) -> None:
    """Inputs are (samples, features), with one finite row and one integer label for every sample."""
    raw = case.once(read_raw)
    try:
        data = case.once(load_and_scale)
    except (DataError, OptionError) as error:
        raise CheckFailed("arrays that fit together", str(error), "return what Data describes") from error
    for what, labels in (("y", raw.y), ("test_y", raw.test_y)):
        if labels.dtype.kind not in "iu":
            raise CheckFailed(f"integer labels in {what}", str(labels.dtype), f"convert them: {what}.astype(np.int64)")
    if data.x.shape[1] != data.test_x.shape[1]:
        raise CheckFailed(
            f"{data.x.shape[1]} features in test inputs as well", str(data.test_x.shape[1]), "treat both sets alike"
        )


@check_for(Dataset)
def check_labels_are_used(case: Case[Dataset]) -> None:
    """There are two classes or more, all labels are among them, and training samples of each."""
    data = case.once(read_raw)
    classes = len(data.class_names)
    seen = np.bincount(data.y, minlength=classes)
    if classes < 2 or len(set(data.class_names)) != classes:
        raise CheckFailed("two or more class names, all different", f"{data.class_names}", "name every class once")
    if len(seen) > classes or data.test_y.max() >= classes:
        raise CheckFailed(
            f"labels 0..{classes - 1}", f"{max(data.y.max(), data.test_y.max())}", "number classes from 0"
        )
    if not seen.all():
        raise CheckFailed(
            "training samples of every class",
            f"none of {data.class_names[int(np.argmin(seen))]!r}",
            "shuffle before splitting",
        )


@check_for(Dataset)
def check_facts_match_the_arrays(case: Case[Dataset]) -> None:
    """Image shape, feature names and groups have as many entries as the arrays."""
    data = case.once(read_raw)
    features = data.x.shape[1]
    if data.image_shape is not None and math.prod(data.image_shape) != features:
        raise CheckFailed(
            f"an image_shape of {features} numbers", f"{data.image_shape}", "use (channels, height, width)"
        )
    if data.feature_names and len(data.feature_names) != features:
        raise CheckFailed(f"{features} feature names, or none", f"{len(data.feature_names)}", "name every column")
    if data.groups is not None and len(data.groups) != len(data.y):
        raise CheckFailed(f"a group for each of {len(data.y)} samples", f"{len(data.groups)}", "cut groups like labels")


@check_for(Dataset)
def check_domain_contains_the_data(case: Case[Dataset]) -> None:
    """Every input, raw and scaled, lies in the declared domain, to which attacks are clamped."""
    for what, get in (("raw", read_raw), ("scaled", load_and_scale)):
        data = case.once(get)
        for name, x in (("training", data.x), ("test", data.test_x)):
            low = float(x.min())
            high = float(x.max())
            slack = INPUT_TOLERANCE * max(1.0, abs(low), abs(high))
            if low < data.domain.low - slack or high > data.domain.high + slack:
                raise CheckFailed(
                    f"{what} {name} inputs within [{data.domain.low:g}, {data.domain.high:g}]",
                    f"[{low:g}, {high:g}]",
                    "declare a wider domain, or the default Domain() if none is known beforehand",
                )


@check_for(Dataset)
def check_norm_bound_holds(case: Case[Dataset]) -> None:
    """No scaled input is longer than the domain allows: certificates rely on this bound."""
    data = case.once(load_and_scale)
    bound = data.domain.norm_bound(data.x.shape[1])
    for x in (data.x, data.test_x):
        longest = float(np.linalg.norm(x.astype(np.float64), axis=1).max())
        if longest > bound * (1 + INPUT_TOLERANCE):
            raise CheckFailed(f"norms up to {bound:g}", f"{longest:g}", "declare the domain that contains the data")


@check_for(Dataset)
def check_test_samples_are_not_for_training(case: Case[Dataset]) -> None:
    """Not all test samples are among the training samples."""
    data = case.once(read_raw)
    known = {row.tobytes() for row in data.x}
    if all(row.tobytes() in known for row in data.test_x.astype(data.x.dtype)):
        raise CheckFailed("test samples that were not trained on", "none", "split before anything is drawn or repeated")


@check_for(Dataset)
def check_subsets_are_the_first_samples(case: Case[Dataset]) -> None:
    """`train_samples` and `test_samples` keep the first samples, as they were."""
    case.once(read_raw)
    few = case.fresh().model_copy(update={"train_samples": 5, "test_samples": 3, "scaling": "none"})
    whole = case.fresh().model_copy(update={"scaling": "none"}).load()
    data = few.load()
    if (len(data.x), len(data.test_x)) != (5, 3):
        raise CheckFailed(
            "5 training and 3 test samples", f"{len(data.x)} and {len(data.test_x)}", "do not override load()"
        )
    if not redefines_option(type(case.plugin), "train_samples") and not same_rows(data, whole):
        raise CheckFailed(
            "the first rows of the whole", "others", "do not let the draw depend on the number of samples"
        )


@check_for(Dataset)
def check_every_scaling_works(case: Case[Dataset]) -> None:
    """Data can be scaled in all ways, unless the domain is unbounded and the range would be needed."""
    raw = case.once(read_raw)
    ranged = is_bounded(raw.domain) or raw.ranges is not None
    for kind in ("none", "minmax", "standardise", *(("unit-range",) if ranged else ())):
        scaling, domain = fit_scaling(kind, raw)
        x = scaling.apply(raw.x[:100])
        if (
            not np.isfinite(x).all()
            or x.min() < domain.low - INPUT_TOLERANCE
            or x.max() > domain.high + INPUT_TOLERANCE
        ):
            raise CheckFailed(
                f"finite inputs within {domain} for scaling = {kind!r}",
                f"[{x.min():g}, {x.max():g}]",
                "declare the domain of the raw data as it is",
            )


def redefines_option(dataset: type[Dataset], option: str) -> bool:
    """Return whether a dataset redefines an option.

    An example is the number of samples to generate.
    """
    below = dataset.__mro__[: dataset.__mro__.index(Dataset)]
    return any(option in vars(base).get("__annotations__", {}) for base in below)


def same_rows(few: Data, whole: Data) -> bool:
    """Return whether the few samples are the first of the whole."""
    pairs: list[tuple[NDArray[np.generic], NDArray[np.generic]]]
    pairs = [(few.x, whole.x), (few.y, whole.y), (few.test_x, whole.test_x), (few.test_y, whole.test_y)]
    return all(np.array_equal(some, all_of[: len(some)]) for some, all_of in pairs)


def is_bounded(domain: Domain) -> bool:
    """Return whether both ends of a domain are finite."""
    return bool(np.isfinite([domain.low, domain.high]).all())
