"""The user's own data for `crfl advise`: what a file holds, how different its owners are, and what suits it."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field, ValidationError

from crfl_core.errors import CrflError
from crfl_core.extend import OptionError, Registry, Table

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from crfl_core.extend import Data

ALIKE_BELOW = 0.15
TABLES = (".csv", ".csv.gz", ".parquet")
MOST_TEXTS = 50
"""A column with more different texts, such as names or dates, says too little about new rows: it is left out."""
DIFFERENT_ABOVE = 0.4
"""Mean distances of the owners' labels from those of all, for the words of `describe_heterogeneity`."""


class AdviceError(CrflError):
    """Error about answers without advice: why, and for which answers there is advice."""


class OwnData(Table):
    """Facts about a file of samples on which a config depends."""

    path: str
    label: str | None = Field(description="column or array of the labels; None: the default of the dataset")
    group: str | None = Field(description="column or array of the owners; None: samples are dealt to clients")
    samples: int
    features: int
    classes: int
    image_shape: tuple[int, ...] | None
    bounds: tuple[float, float] | None = Field(description="smallest and largest input, if columns have no names")
    ranges: dict[str, tuple[float, float]] = Field(description="smallest and largest value of every named column")
    categories: dict[str, tuple[str, ...]] = Field({}, description="the texts of every column that holds some")
    left_out: tuple[str, ...] = Field((), description="columns of too many texts, which are not used")
    owners: int | None = Field(description="how many owners there are; None without `group`")
    smallest_owner: int | None = Field(description="samples of the owner that has fewest")
    heterogeneity: float | None = Field(description="mean distance of an owner's labels from all: 0 alike, 1 disjoint")

    @property
    def longest_distance(self) -> float:
        """Return the longest distance between two rows of a table.

        Columns are within [0, 1], and texts are 0 and 1.
        """
        return math.sqrt(len(self.ranges) + sum(min(len(texts), 2) for texts in self.categories.values()))

    @property
    def lines(self) -> list[str]:
        """Return the tables of the dataset in a config."""
        options = {"path": self.path, "label": self.label, "group": self.group, "scaling": "unit-range"}
        lines = ["[dataset]", 'type = "arrays"']
        lines += [f"{key} = {json.dumps(value)}" for key, value in options.items() if value is not None]
        if self.left_out:
            lines.append(f"inputs = {json.dumps([*self.ranges, *self.categories])}")
        if self.bounds is not None:
            lines.append(f"domain = [{self.bounds[0]:g}, {self.bounds[1]:g}]")
        if self.ranges or self.categories:
            lines += [
                "",
                "# Measured on these rows, and rounded. Put in what you know: certificates take both for public, and",
                "# a client may have brought an extreme value. Values beyond are clamped, other texts count as none.",
            ]
        if self.ranges:
            lines.append("[dataset.ranges]")
            lines += [f"{toml_key(name)} = [{low:g}, {high:g}]" for name, (low, high) in self.ranges.items()]
        if self.categories:
            lines += ["", "[dataset.categories]"]
            lines += [f"{toml_key(name)} = {json.dumps(texts)}" for name, texts in self.categories.items()]
        return lines

    def describe(self) -> str:
        """Describe the data in one sentence."""
        shape = "" if self.image_shape is None else f", images of {' x '.join(map(str, self.image_shape))}"
        made = f" (of texts: {', '.join(self.categories)})" if self.categories else ""
        text = f"{self.samples:,} samples of {self.features:,} inputs{shape}{made}, {self.classes} classes"
        if self.left_out:
            text += f", without {', '.join(self.left_out)} (more than {MOST_TEXTS} texts)"
        if self.owners is None:
            return f"{text}, dealt to clients at random"
        return f"{text}, {self.owners} owners with {self.smallest_owner} samples or more"

    def describe_heterogeneity(self) -> str:
        """Describe how different owners are; empty if there are none."""
        if self.heterogeneity is None:
            return ""
        words = "about alike" if self.heterogeneity < ALIKE_BELOW else "somewhat different"
        words = "very different" if self.heterogeneity > DIFFERENT_ABOVE else words
        scale = "0 is alike, 1 is disjoint"
        return f"labels of owners are {words}: {self.heterogeneity:.2f} from those of all owners ({scale})"


def toml_key(name: str) -> str:
    """Return the name of a column as a key of TOML."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)


def read_own_data(path: Path, label: str | None, group: str | None) -> OwnData:
    """Read a file of samples as the dataset `arrays` does.

    Raises `AdviceError` that says what is wrong.
    """
    import numpy as np

    options: dict[str, object] = {"path": str(path)}
    options |= {key: value for key, value in (("label", label), ("group", group)) if value is not None}
    categories: dict[str, tuple[str, ...]] = {}
    left_out: tuple[str, ...] = ()
    try:
        dataset: Any = Registry().load("dataset", "crfl:arrays")
        plugin = dataset.model_validate(options)
        if path.name.endswith(TABLES) and path.is_file():
            texts: dict[str, tuple[str, ...]] = plugin.text_columns()
            categories = {name: values for name, values in texts.items() if len(values) <= MOST_TEXTS}
            left_out = tuple(name for name in texts if name not in categories)
            columns = [name for name in plugin.source_columns() if name not in left_out]
            options |= {"inputs": columns, "categories": categories or None, "scaling": "minmax"}  # ranges are measured
            plugin = dataset.model_validate(options)
        data: Data = plugin.read()
    except ValidationError as error:
        reason = error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")
        raise AdviceError(f"--data {path}: {reason}") from error
    except OptionError as error:
        raise AdviceError(f"--data {path}: {error}") from error
    except CrflError as error:
        raise AdviceError(f"--data: {error}") from error
    x = np.concatenate([data.x, data.test_x])
    is_table = bool(data.feature_names) and data.image_shape is None
    has_bytes = x.dtype == np.uint8
    indicators = {f"{column}={text}" for column, values in categories.items() for text in values}
    owners = None if data.groups is None else len(data.group_names)
    counts = None if data.groups is None else np.bincount(data.groups, minlength=len(data.group_names))
    return OwnData(
        path=str(path),
        label=label,
        group=group,
        samples=len(x),
        features=x.shape[1],
        classes=len(data.class_names),
        image_shape=data.image_shape,
        bounds=None if is_table or has_bytes else round_outward(float(x.min()), float(x.max())),
        ranges={
            name: round_outward(float(column.min()), float(column.max()))
            for name, column in zip(data.feature_names, x.T, strict=False)
            if name not in indicators
        }
        if is_table
        else {},
        categories=categories,
        left_out=left_out,
        owners=owners,
        smallest_owner=None if counts is None else int(counts.min()),
        heterogeneity=None if data.groups is None else label_heterogeneity(data.y, data.groups, len(data.class_names)),
    )


def round_outward(low: float, high: float) -> tuple[float, float]:
    """Round a range outward to two digits of its length.

    A range of one value gets the length 1.

    >>> round_outward(3.14, 97.2), round_outward(5.0, 5.0)
    ((3.0, 98.0), (5.0, 6.0))
    """
    if high <= low:
        high = low + 1.0
    step = 10.0 ** (math.floor(math.log10(high - low)) - 1)
    digits = max(0, -round(math.log10(step)))
    return round(math.floor(low / step) * step, digits), round(math.ceil(high / step) * step, digits)


def label_heterogeneity(labels: NDArray[np.integer], owners: NDArray[np.integer], classes: int) -> float:
    """Return how much the owners' labels differ from those of all.

    It is the mean total-variation distance, weighted by samples.

    >>> import numpy as np
    >>> label_heterogeneity(np.array([0, 0, 1, 1]), np.array([0, 0, 1, 1]), 2)
    0.5
    """
    import numpy as np

    counts = np.zeros((int(owners.max()) + 1, classes))
    np.add.at(counts, (owners, labels), 1)
    sizes = counts.sum(1)
    shares = counts / np.maximum(sizes, 1)[:, None]
    distances = np.abs(shares - counts.sum(0) / sizes.sum()).sum(1) / 2
    return float((sizes * distances).sum() / sizes.sum())
