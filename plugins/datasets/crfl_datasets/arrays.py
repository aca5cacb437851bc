"""Dataset `arrays`: the user's own data."""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from runpy import run_path
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from crfl_core.extend import Data, DataError, ImportPath, OptionError, ScalingKind, SplitDataset, UserPath
from crfl_datasets import tables
from crfl_datasets.samples import ClassNames, DeclaredFacts, Range, Samples, make_dataset, samples_from_arrays

ENDINGS = (".npz", ".npy", *tables.ENDINGS)
ARRAY_NAMES = ("x", "y", "test_x", "test_y")
"""Names of the arrays in a .npz file, in the order in which a callable returns them."""

WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,18}(\.0*)?")
"""Longer text is not the number of a class, and the number of an owner may stay text."""

TEXT_REMEDY = "correct the cell, remove the row, or list the texts of the column in `categories`"


class Arrays(SplitDataset):
    """Your own data: arrays or tables in a file, or a Python function that returns them.

    - `.npz`: the arrays `x`, `y` and perhaps `test_x`, `test_y`; `inputs`, `label` and `group` give other names, those
      of the test arrays with `test_` in front.
    - `.npy`: inputs in `path`, labels in `labels_path`. Python objects in NumPy files are never loaded.
    - `.csv`, `.csv.gz`, `.parquet` (needs `crfl[tables]`): a row for each sample; all columns but `label` and `group`
      are inputs, or those listed in `inputs`, and hold numbers, or texts that `categories` lists.
    - `callable = "package.module:function"` or `"file.py:function"`: the function is called without arguments and
      returns a `Data`, the tuple (x, y) or (x, y, test_x, test_y), or a mapping with the names of a `.npz` file. **This
      runs the code that a config names**, with your rights: `plugins.allow` must list its package if it is set, and
      another user's run must be trusted.

    Inputs are (samples, features), or images as (samples, height, width) or (samples, channels, height, width). Labels
    are the numbers 0..classes-1 or text, groups numbers or text. Test samples are those of `test_path`, or of the
    arrays `test_x`, `test_y`; without either a share `test_fraction` is drawn.
    """

    scaling: ScalingKind = Field("none", description="`unit-range` needs `domain`, which bytes have: 0..255")
    path: UserPath | None = Field(None, description="file of the samples: .npz, .npy, .csv, .csv.gz or .parquet")
    labels_path: UserPath | None = Field(None, description="labels of a .npy file")
    test_path: UserPath | None = Field(None, description="file of the test samples, of the same kind as `path`")
    test_labels_path: UserPath | None = Field(None, description="labels of a .npy file of test samples")
    callable: ImportPath | None = Field(
        None, description='instead of `path`: "package.module:function"; runs your code'
    )
    inputs: str | tuple[str, ...] | None = Field(None, description="array of inputs, or columns of a table")
    label: str | None = Field(None, description="array (`y`) or column (`label`) of labels")
    group: str | None = Field(None, description="array or column of the natural owners of the samples")
    class_names: ClassNames = Field((), description="names of the classes in the order of their numbers")
    domain: Range | None = Field(None, description="smallest and largest valid raw input")
    ranges: dict[str, Range] | None = Field(
        None,
        description="smallest and largest value of every input column of a table, which are public: with `unit-range` "
        "they become 0 and 1, and values beyond are clamped",
    )
    categories: dict[str, Annotated[ClassNames, Field(min_length=1)]] | None = Field(
        None,
        description="texts of input columns of a table, which are public: each text becomes an input that is 1 in its "
        "rows and else 0; a row with another text, or none, has 0 in all of them",
    )
    image_shape: tuple[Annotated[int, Field(ge=1)], ...] | None = Field(
        None, min_length=2, max_length=3, description="[height, width] or [channels, height, width]"
    )

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if (self.path is None) == (self.callable is None):
            raise ValueError("give either `path` or `callable`")
        if self.categories and self.scaling == "none":  # an audit would take this for no preprocessing at all
            raise ValueError('`categories` needs `scaling = "unit-range"`, with `ranges` for columns of numbers')
        for file, labels, words in (
            (self.path, self.labels_path, ("path", "labels_path")),
            (self.test_path, self.test_labels_path, ("test_path", "test_labels_path")),
        ):
            if file is not None and not file.name.endswith(ENDINGS):
                raise ValueError(f"`{words[0]}` must end in {', '.join(ENDINGS)}, found {file.name}")
            if (file is not None and file.suffix == ".npy") != (labels is not None):
                raise ValueError(f"`{words[1]}` goes with a .npy file in `{words[0]}`, and only with that")
            if labels is not None and labels.suffix != ".npy":
                raise ValueError(f"`{words[1]}` must end in .npy, found {labels.name}")
        return self

    def read(self) -> Data:
        """Read the samples of the file or of the function."""
        for option in ("path", "labels_path", "test_path", "test_labels_path"):
            path: Path | None = getattr(self, option)
            if path is not None and not path.is_file():
                raise OptionError(option, f"there is no file {path}")
        columns: tuple[str, ...] = ()
        if self.path is None:
            result = call_function(str(self.callable))
            if isinstance(result, Data):
                return result
            train, test = self._from_mapping(name_arrays(result, str(self.callable)), str(self.callable))
        else:
            if self.path.name.endswith(tables.ENDINGS):
                columns = self._input_columns(self.path)
            train, test = self._from_file(self.path, self.labels_path, columns)
        if self.test_path is not None:
            test, _ = self._from_file(self.test_path, self.test_labels_path, columns)
        if self.categories and not columns:
            raise OptionError("categories", "belongs to the columns of a table")
        declared = DeclaredFacts(self.class_names, columns, self.domain, self.image_shape)
        data = make_dataset(train, test, self.split, declared)
        if self.ranges is None and not (self.categories and self.scaling == "unit-range"):
            return data
        return replace(data, ranges=self._declared_ranges(self.ranges or {}, columns))

    def text_columns(self) -> dict[str, tuple[str, ...]]:
        """Return the distinct texts of each input column that holds text.

        Columns that hold only numbers are left out.
        """
        columns = self.source_columns()
        found: dict[str, set[str]] = {name: set() for name in columns}
        for block in tables.read_table(self._table, dict.fromkeys(columns, "text")):
            for name in columns:
                found[name].update(block.texts(name)[1])
        texts = {name: tuple(sorted(values - {""})) for name, values in found.items()}
        return {name: values for name, values in texts.items() if not all(map(is_number, values))}

    def _declared_ranges(
        self, ranges: Mapping[str, Range], columns: tuple[str, ...]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the lowest and the highest values of a table's inputs."""
        if not columns:
            raise OptionError("ranges", "belongs to the columns of a table: give `domain` for arrays")
        numbers = [name for name in columns if name not in self._indicators]
        if missing := [name for name in numbers if name not in ranges]:
            raise OptionError("ranges", f"has none for the column {missing[0]!r}: give one for each column of numbers")
        if unknown := [name for name in ranges if name not in numbers]:
            raise OptionError("ranges", f"there is no column of numbers {unknown[0]!r}, found {', '.join(numbers)}")
        low, high = np.array([ranges.get(name, (0.0, 1.0)) for name in columns], np.float64).T
        return low, high

    def read_inputs(self, path: Path, feature_names: tuple[str, ...]) -> NDArray[np.generic]:
        """Return new inputs from a table.

        A label and a group in the table are ignored.
        """
        if not path.name.endswith(tables.ENDINGS):
            return super().read_inputs(path, feature_names)
        inputs = feature_names or self._input_columns(path)
        blocks = tables.read_table(path, self._column_kinds(inputs), TEXT_REMEDY)
        rows = [self._block_inputs(block, inputs) for block in blocks]
        if not rows:
            raise DataError(f"{path}: has a header but no rows")
        return np.concatenate(rows)

    def _from_file(
        self, path: Path, labels_path: Path | None, columns: tuple[str, ...]
    ) -> tuple[Samples, Samples | None]:
        """Read the samples of a file and its test samples.

        The test samples are None if the file has none. A table needs columns.
        """
        if path.name.endswith(tables.ENDINGS):
            return self._from_table(path, columns or self._input_columns(path)), None
        if labels_path is None:
            return self._from_mapping(load_numpy(path), str(path))
        return samples_from_arrays(str(path), load_numpy(path), load_numpy(labels_path)), None

    def _from_mapping(self, arrays: Mapping[str, Any], origin: str) -> tuple[Samples, Samples | None]:
        """Build samples from named arrays."""
        if isinstance(self.inputs, tuple):
            raise OptionError("inputs", "must be the name of one array, a list is for the columns of a table")
        inputs = self.inputs or "x"
        label = self.label or "y"
        for name in (inputs, label, *([self.group] if self.group else ())):
            if name not in arrays:
                raise DataError(f"{origin}: there is no array {name!r}, found {', '.join(map(str, arrays)) or 'none'}")
        train = samples_from_arrays(origin, arrays[inputs], arrays[label], arrays[self.group] if self.group else None)
        tests = [f"test_{name}" for name in (inputs, label) if f"test_{name}" in arrays]
        if len(tests) == 1:
            missing = f"test_{label if tests[0] == f'test_{inputs}' else inputs}"
            raise DataError(f"{origin}: there is an array {tests[0]!r}, but none {missing!r}: add it")
        return train, samples_from_arrays(f"{origin} (test)", *(arrays[name] for name in tests)) if tests else None

    @property
    def _indicators(self) -> dict[str, tuple[str, str]]:
        """Return the column and text behind each input of `categories`.

        The keys are the names of the inputs.
        """
        listed = (self.categories or {}).items()
        return {f"{column}={text}": (column, text) for column, texts in listed for text in texts}

    def _column_kinds(self, inputs: tuple[str, ...]) -> dict[str, tables.ColumnKind]:
        """Return the columns of a table behind some inputs.

        Each comes with the kind by which it is read.
        """
        kinds: dict[str, tables.ColumnKind] = {}
        for name in inputs:
            if name in self._indicators:
                kinds[self._indicators[name][0]] = "text"
            else:
                kinds[name] = "number"
        return kinds

    def _block_inputs(self, block: tables.TableBlock, inputs: tuple[str, ...]) -> NDArray[np.float64]:
        """Return the inputs of a block of rows, (rows, inputs)."""
        indicators = self._indicators
        values: list[NDArray[np.generic]] = []
        for name in inputs:
            if name in indicators:
                column, text = indicators[name]
                values.append(block.matches(column, {text}))
            else:
                values.append(block.numbers(name))
        return np.column_stack(values).astype(np.float64, copy=False)

    def _input_columns(self, path: Path) -> tuple[str, ...]:
        """Return the names of the inputs of a table.

        These are the columns of numbers, and one name for each text of the other columns.
        """
        columns = self._source_columns(path)
        categories = self.categories or {}
        if unknown := [name for name in categories if name not in columns]:
            raise OptionError("categories", f"there is no input column {unknown[0]!r}, found {', '.join(columns)}")
        inputs = [
            name
            for column in columns
            for name in ([f"{column}={text}" for text in categories[column]] if column in categories else [column])
        ]
        if clash := [name for name in inputs if inputs.count(name) > 1]:
            raise OptionError("categories", f"there is a column {clash[0]!r}, too: rename it")
        return tuple(inputs)

    def source_columns(self) -> tuple[str, ...]:
        """Return the columns of the table in `path` behind its inputs."""
        return self._source_columns(self._table)

    @property
    def _table(self) -> Path:
        """Return the table in `path`."""
        if self.path is None or not self.path.name.endswith(tables.ENDINGS):
            raise OptionError("path", f"must end in {', '.join(tables.ENDINGS)}: found {self.path}")
        return self.path

    def _source_columns(self, path: Path) -> tuple[str, ...]:
        others = (self.label or "label", self.group)
        if self.inputs is None:
            columns = tuple(name for name in tables.column_names(path) if name not in others)
        else:
            columns = (self.inputs,) if isinstance(self.inputs, str) else self.inputs
        if not columns or any(name in others for name in columns):
            raise OptionError("inputs", f"name columns other than the label and the group: found {list(columns)}")
        return columns

    def _from_table(self, path: Path, inputs: tuple[str, ...]) -> Samples:
        """Read the samples of a table."""
        label = self.label or "label"
        others = list(dict.fromkeys([label, *([self.group] if self.group else ())]))
        kinds: dict[str, tables.ColumnKind] = {**self._column_kinds(inputs), **dict.fromkeys(others, "text")}
        blocks = []
        texts = {name: list[NDArray[np.str_]]() for name in others}
        first = 0
        for block in tables.read_table(path, kinds, TEXT_REMEDY):
            first = first or block.first
            blocks.append(self._block_inputs(block, inputs))
            for name in others:
                texts[name].append(block.required_texts(name))
        if not blocks:
            raise DataError(f"{path}: has a header but no rows")
        columns = {name: integers_or_text(np.concatenate(parts)) for name, parts in texts.items()}
        row = None if self.class_names else first_text_label(columns[label])
        if row is not None:
            found = str(columns[label][row])[:40]
            raise DataError(
                f"{path}, row {first + row}, column {label!r}: found {found!r} where others are numbers: correct it, "
                "or name all classes in class_names"
            )
        owners = columns[self.group] if self.group else None
        return samples_from_arrays(str(path), np.concatenate(blocks), columns[label], owners, first)


def load_numpy(path: Path) -> Any:
    """Load the array of a .npy file or a .npz file's arrays.

    The array of a .npy file is mapped into memory; those of a .npz file are returned by name. Raises `DataError` if the
    file cannot be read.
    """
    try:
        if path.suffix == ".npy":
            return np.lib.format.open_memmap(path, mode="r")  # maps no Python objects
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
            return dict(arrays)
    except (OSError, ValueError, TypeError, EOFError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        # NumPy takes whatever it does not know for pickled objects, and advises to trust them.
        reason = "Python objects, or something else" if "pickle" in str(error) else error
        raise DataError(
            f"{path}: is not a {path.suffix} file of numbers or text ({reason}): write it with np.save or np.savez"
        ) from error


def call_function(name: str) -> Any:
    """Call the function "package.module:function" or "file.py:function"."""
    module, _, function = name.rpartition(":")
    try:
        is_file = module.endswith(".py")
        target = run_path(module)[function] if is_file else getattr(import_module(module), function)
    except (Exception, SystemExit) as error:  # importing runs the user's code: anything may come out
        raise OptionError("callable", f"{name!r} cannot be imported: {type(error).__name__}: {error}") from error
    try:
        return target()
    except (Exception, SystemExit) as error:
        raise DataError(f"{name}() failed: {type(error).__name__}: {error}") from error


def name_arrays(result: object, origin: str) -> Mapping[str, Any]:
    """Return the arrays that a function returned, by name."""
    if isinstance(result, Mapping):
        return result
    if isinstance(result, tuple) and len(result) in (2, 4):
        return dict(zip(ARRAY_NAMES, result, strict=False))
    raise DataError(
        f"{origin}() must return a Data, (x, y), (x, y, test_x, test_y) or a mapping with these names, found "
        f"{type(result).__name__}{f' of {len(result)}' if isinstance(result, tuple) else ''}"
    )


def integers_or_text(texts: NDArray[np.str_]) -> NDArray[np.generic]:
    """Convert cells of a table to integers if possible.

    If some cell is not an integer, return the text.
    """
    values, codes = np.unique(texts, return_inverse=True)
    if all(WHOLE_NUMBER.fullmatch(value) for value in values):
        return np.array([int(value.partition(".")[0]) for value in values])[codes]
    return texts


def is_number(text: str) -> bool:
    """Return whether a cell of a table is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def first_text_label(labels: NDArray[np.generic]) -> int | None:
    """Return the row of the first label that is not a number.

    Numbers are whole numbers. The result is None if no label is a number, or if all are.
    """
    if labels.dtype.kind != "U":
        return None
    values, codes = np.unique(labels, return_inverse=True)
    numbers = np.array([WHOLE_NUMBER.fullmatch(str(value)) is not None for value in values])
    return int(np.argmin(numbers[codes])) if numbers.any() else None
