"""Any image or tabular set of the Hugging Face hub, or one saved to disk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from crfl_core.extend import Data, DataError, OptionError, ScalingKind, SplitDataset, UserPath, cache_dir
from crfl_datasets.samples import ClassNames, DeclaredFacts, Range, Samples, make_dataset, samples_from_arrays

ROWS_PER_READ = 1000


class HuggingFace(SplitDataset):
    """An image or tabular set in the format of Hugging Face `datasets`; needs `crfl[hf]`.

    The set is a name on the hub, or a folder that `save_to_disk` wrote; a saved set needs no network. What is prepared
    from the hub's files is kept in the cache of crfl, the files themselves in Hugging Face's own.

    Inputs are the column of images, if there is one, else all columns of numbers but label and group. Images must be
    of one size; grey ones are (height, width), others (channels, height, width), with values 0..255. Without a test
    split a share `test_fraction` is drawn from the training split.
    """

    scaling: ScalingKind = Field("unit-range", description="`unit-range` is for images, or needs `domain`")
    name: str | None = Field(None, description='name on the hub, such as "ylecun/mnist"')
    path: UserPath | None = Field(None, description="instead of `name`: a folder that `save_to_disk` wrote")
    config: str | None = Field(None, description="configuration of the set, if the hub offers several")
    revision: str | None = Field(None, description="commit, tag or branch on the hub; a commit makes runs repeatable")
    train_split: str = Field("train", description="split of the training samples")
    test_split: str | None = Field(None, description='split of the test samples; unset: "test", if there is one')
    inputs: str | tuple[str, ...] | None = Field(None, description="columns of the inputs")
    label: str = Field("label", description="column of the labels")
    group: str | None = Field(None, description="column of the natural owners of the samples")
    colour: Literal["keep", "grey", "rgb"] = Field("keep", description="convert images to one or three channels")
    class_names: ClassNames = Field((), description="names of the classes; unset: as the set gives them")
    domain: Range | None = Field(None, description="smallest and largest valid raw input of a table")

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if (self.name is None) == (self.path is None):
            raise ValueError("give either `name` or `path`")
        return self

    @property
    def _origin(self) -> str:
        return str(self.path or self.name)

    def read(self) -> Data:
        """Read the samples of the splits."""
        splits = self._splits()
        train, columns = self._samples(splits, self.train_split)
        test = None
        if self.test_split is not None or "test" in splits:
            test, _ = self._samples(splits, self.test_split or "test", columns)
        names = getattr(splits[self.train_split].features[self.label], "names", ())
        features = columns if len(columns) == train.x.shape[1] else ()
        return make_dataset(train, test, self.split, DeclaredFacts(self.class_names or names, features, self.domain))

    def _splits(self) -> Mapping[str, Any]:
        """Load the splits by name.

        A set saved without splits is the training split.
        """
        hub = import_datasets()
        try:
            if self.path is not None:
                loaded = hub.load_from_disk(str(self.path))
            else:
                cache = str(cache_dir() / "huggingface")
                loaded = hub.load_dataset(self.name, self.config, revision=self.revision, cache_dir=cache)
        except Exception as error:  # of many kinds: of the network, of files, of `datasets` itself
            remedy = (
                "give a folder that `save_to_disk` wrote"
                if self.path is not None
                else "check the name and the network, or give the `path` of a set that `save_to_disk` wrote elsewhere"
            )
            raise DataError(f"{self._origin}: cannot be loaded ({type(error).__name__}: {error}): {remedy}") from error
        return loaded if isinstance(loaded, Mapping) else {self.train_split: loaded}

    def _samples(
        self, splits: Mapping[str, Any], name: str, columns: tuple[str, ...] = ()
    ) -> tuple[Samples, tuple[str, ...]]:
        """Read the samples of a split.

        Also return the columns of their inputs: those given, else chosen ones.
        """
        if name not in splits:
            option = "train_split" if name == self.train_split else "test_split"
            raise OptionError(option, f"{self._origin} has no split {name!r}, only {', '.join(splits)}")
        split = splits[name]
        origin = f"{self._origin}, split {name!r}"
        for option in ("label", "group"):
            column = getattr(self, option)
            if column is not None and column not in split.features:
                raise OptionError(option, f"{origin} has no column {column!r}, only {', '.join(split.features)}")
        columns = self._input_columns(split.features, origin, columns)
        pictures = is_image(split.features[columns[0]])
        x = read_images(split, columns[0], origin, self.colour) if pictures else read_numbers(split, columns, origin)
        others = split.select_columns([self.label, *([self.group] if self.group else ())])[:]
        return samples_from_arrays(origin, x, others[self.label], others[self.group] if self.group else None), columns

    def _input_columns(self, features: Mapping[str, Any], origin: str, columns: tuple[str, ...]) -> tuple[str, ...]:
        """Choose one column of images, or columns of numbers."""
        if not columns and self.inputs is not None:
            columns = (self.inputs,) if isinstance(self.inputs, str) else self.inputs
        elif not columns:
            others = {name: feature for name, feature in features.items() if name not in (self.label, self.group)}
            columns = tuple(name for name, feature in others.items() if is_image(feature)) or tuple(
                name for name, feature in others.items() if is_number(feature)
            )
        missing = [name for name in columns if name not in features or name == self.label]
        if missing or not columns or (len(columns) > 1 and any(is_image(features[name]) for name in columns)):
            found = (
                f"no column {missing[0]!r} beside the label"
                if missing
                else f"{', '.join(columns) or 'nothing'} as inputs"
            )
            raise OptionError(
                "inputs",
                f"name one column of images, or columns of numbers: found {found} in {origin}, which has "
                f"{', '.join(features)}",
            )
        return columns


def import_datasets() -> Any:
    """Import the package `datasets` when it is needed.

    It is an extra, and its import takes seconds. Raises `DataError` if it is missing.
    """
    try:
        import datasets
    except ImportError as error:
        raise DataError(
            f"sets of Hugging Face are read with `datasets`, which is missing: pip install 'crfl[hf]' ({error})"
        ) from error
    return datasets


def is_image(feature: object) -> bool:
    """Check whether a column holds images."""
    return isinstance(feature, import_datasets().Image)


def is_number(feature: object) -> bool:
    """Check whether a column holds numbers, one in every row."""
    kind = feature.dtype if isinstance(feature, import_datasets().Value) else ""
    return kind.startswith(("int", "uint", "float", "bool"))


def read_blocks(split: Any, columns: tuple[str, ...], origin: str) -> Iterator[tuple[int, dict[str, list[Any]]]]:
    """Yield blocks of rows of some columns.

    Each block comes with the number of its first row.
    """
    chosen = split.select_columns(list(columns))
    for start in range(0, len(split), ROWS_PER_READ):
        try:
            rows = chosen[start : start + ROWS_PER_READ]
        except Exception as error:  # whatever decodes images may raise
            raise DataError(
                f"{origin}, one of {ROWS_PER_READ} rows from {start} on: cannot be decoded ({type(error).__name__}: "
                f"{error}): save the set again without it"
            ) from error
        yield start, rows


def read_numbers(split: Any, columns: tuple[str, ...], origin: str) -> NDArray[np.float64]:
    """Read columns of a table side by side.

    A column of lists gives as many features as the lists are long.
    """
    parts = []
    for start, block in read_blocks(split, columns, origin):
        features = []
        for name in columns:
            try:
                features.append(np.array(block[name], np.float64).reshape(len(block[name]), -1))  # None becomes NaN
            except (ValueError, TypeError) as error:
                raise DataError(
                    f"{origin}, column {name!r}, rows from {start} on: there is something else than numbers, or than "
                    f"lists of one length ({error}): name other columns in `inputs`"
                ) from error
        parts.append(np.hstack(features))
    return np.concatenate(parts) if parts else np.empty((0, 0))


def read_images(split: Any, column: str, origin: str, colour: str) -> NDArray[np.uint8]:
    """Read images into one array of bytes.

    It is (images, height, width) or (images, channels, height, width).
    """
    result = np.empty((0, 0), np.uint8)
    for start, block in read_blocks(split, (column,), origin):
        for row, image in enumerate(block[column], start):
            pixels = image_pixels(image, colour, f"{origin}, row {row}")
            if row == 0:
                result = np.empty((len(split), *pixels.shape), np.uint8)
            if pixels.shape != result.shape[1:]:
                raise DataError(
                    f"{origin}, row {row}: the image is {list(pixels.shape)}, but the first one is "
                    f"{list(result.shape[1:])}: bring images to one size, and set colour if their channels differ"
                )
            result[row] = pixels
    return result


def image_pixels(image: Any, colour: str, place: str) -> NDArray[np.uint8]:
    """Return the bytes of an image, channels first."""
    if image is None:
        raise DataError(f"{place}: has no image: remove the row")
    if colour != "keep":
        image = image.convert("L" if colour == "grey" else "RGB")
    if image.mode not in ("L", "RGB"):
        raise DataError(f"{place}: the image is of mode {image.mode}: set colour to grey or rgb to convert it")
    pixels: NDArray[np.uint8] = np.asarray(image)
    return pixels if pixels.ndim == 2 else np.moveaxis(pixels, -1, 0)
