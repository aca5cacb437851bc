"""Tables in CSV or Parquet files, read in blocks of rows; errors name the file, the row, the column.

Rows are counted as a spreadsheet shows them: the header of a CSV file is row 1. Cells are parsed as numbers or kept as
text, nothing else; only an empty cell is a missing one, and blank lines do not count.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from crfl_core.extend import DataError
from crfl_datasets.samples import LARGEST_FLOAT32

ColumnKind = Literal["number", "text"]

CSV_ENDINGS = (".csv", ".csv.gz")
ENDINGS = (*CSV_ENDINGS, ".parquet")

NOT_A_NUMBER = re.compile(r"column #(?P<column>\d+): Row #(?P<row>\d+): .*invalid value '(?P<cell>.*)'", re.DOTALL)
NOT_UTF8 = re.compile(r"column #(?P<column>\d+): Row #(?P<row>\d+): .*invalid UTF8")
WRONG_LENGTH = re.compile(r"Row #(?P<row>\d+): Expected (?P<names>\d+) columns, got (?P<cells>\d+)")


@dataclass(frozen=True)
class TableBlock:
    """Consecutive rows of a table; the first has the number `first`."""

    path: Path
    first: int
    rows: Any  # a pyarrow.RecordBatch

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    def numbers(self, column: str, empty: float | None = None) -> NDArray[np.float64]:
        """Return a column of numbers, finite in single precision.

        An empty cell counts as `empty`, else it is an error.
        """
        cells = self.rows.column(column)
        if cells.null_count and empty is not None:
            cells = cells.fill_null(empty)
        values: NDArray[np.float64] = cells.to_numpy(zero_copy_only=False)
        finite = np.abs(values) <= LARGEST_FLOAT32
        if not finite.all():
            row = int(np.argmin(finite))
            found = "is empty" if cells[row].as_py() is None else f"holds {values[row]}"
            raise self.error(
                row, column, f"{found} where a finite number is needed: correct the cell or remove the row"
            )
        return values

    def texts(self, column: str) -> tuple[NDArray[np.int64], tuple[str, ...]]:
        """Return the codes of a text column and the text of each.

        Every row has a code. An empty cell is the text ''.
        """
        coded = self.rows.column(column).dictionary_encode()
        codes = coded.indices.fill_null(len(coded.dictionary)).to_numpy(zero_copy_only=False)
        return codes.astype(np.int64), (*coded.dictionary.to_pylist(), "")

    def matches(self, column: str, wanted: Collection[str]) -> NDArray[np.bool_]:
        """Return which rows have one of these texts in a column."""
        codes, texts = self.texts(column)
        return np.array([text in wanted for text in texts])[codes]

    def required_texts(self, column: str) -> NDArray[np.str_]:
        """Return a column of text in which no cell may be empty.

        Nor may it be NaN, which other programs write for an empty cell.
        """
        codes, texts = self.texts(column)
        missing = np.array([text.lower() in ("", "nan") for text in texts])[codes]
        if missing.any():
            row = int(np.argmax(missing))
            found = texts[codes[row]] or "empty"
            raise self.error(row, column, f"is {found}: fill the cell or remove the row")
        return np.array(texts)[codes]

    def error(self, row: int, column: str, problem: str) -> DataError:
        """Return the error for a cell.

        `row` counts from the first row of this block.
        """
        return DataError(f"{self.path}, row {self.first + row}, column {column!r}: {problem}")


def column_names(path: Path) -> tuple[str, ...]:
    """Return the names of a table's columns in file order."""
    if not path.name.endswith(ENDINGS):
        raise DataError(f"{path}: tables are read from files that end in {', '.join(ENDINGS)}: rename or convert it")
    with translate_errors(path):
        if path.name.endswith(CSV_ENDINGS):
            return tuple(open_csv(path).schema.names)
        return tuple(import_arrow("parquet").read_schema(path).names)


CELL_REMEDY = "correct the cell or remove the row"


def read_table(path: Path, kinds: Mapping[str, ColumnKind], text_remedy: str = CELL_REMEDY) -> Iterator[TableBlock]:
    """Yield some columns of a table, block by block.

    Errors about text among numbers name the remedy.
    """
    names = column_names(path)
    for name in kinds:
        if names.count(name) != 1:
            count = "no column" if name not in names else f"{names.count(name)} columns"
            raise DataError(f"{path}: there is {count} {name!r}, found {', '.join(names)}: is this the right file?")
    is_csv = path.name.endswith(CSV_ENDINGS)
    first = 2 if is_csv else 1
    with translate_errors(path, names, text_remedy):
        for rows in read_csv(path, kinds) if is_csv else read_parquet(path, kinds):
            yield TableBlock(path, first, rows)
            first += rows.num_rows


def read_csv(path: Path, kinds: Mapping[str, ColumnKind]) -> Any:
    """Read the blocks of a CSV file, typed."""
    pa = import_arrow()
    types = {"number": pa.float64(), "text": pa.dictionary(pa.int32(), pa.string())}
    return open_csv(
        path,
        include_columns=list(kinds),
        column_types={name: types[kind] for name, kind in kinds.items()},
        null_values=[""],
        strings_can_be_null=True,
    )


def open_csv(path: Path, **convert: Any) -> Any:
    """Open a reader of the blocks of a CSV file.

    It uses one thread: only so does pyarrow know the number of a bad row.
    """
    csv = import_arrow("csv")
    return csv.open_csv(
        path,
        read_options=csv.ReadOptions(use_threads=False),
        parse_options=csv.ParseOptions(newlines_in_values=True),
        convert_options=csv.ConvertOptions(**convert),
    )


def read_parquet(path: Path, kinds: Mapping[str, ColumnKind]) -> Iterator[Any]:
    """Read the blocks of a Parquet file, typed."""
    pa = import_arrow()
    for rows in import_arrow("parquet").ParquetFile(path).iter_batches(columns=list(kinds)):
        columns = {}
        for name, kind in kinds.items():
            cells = rows.column(name)
            number = pa.types.is_integer(cells.type) or pa.types.is_floating(cells.type)
            if (kind == "number" and not number) or pa.types.is_nested(cells.type):
                raise DataError(f"{path}, column {name!r}: holds {cells.type}, not {kind}s: store it as {kind}s")
            # Large integers are rounded, as they would be in a CSV file.
            columns[name] = cells.cast(pa.float64(), safe=False) if kind == "number" else cells.cast(pa.string())
        yield pa.RecordBatch.from_pydict(columns)


@contextmanager
def translate_errors(path: Path, names: tuple[str, ...] = (), text_remedy: str = CELL_REMEDY) -> Iterator[None]:
    """Turn pyarrow's errors into a `DataError`.

    The error names the place and the remedy.
    """
    pa = import_arrow()
    try:
        yield
    except UnicodeDecodeError as error:
        raise DataError(f"{path}, row 1: the names of the columns are not in UTF-8: save it in UTF-8") from error
    except (pa.ArrowException, OSError) as error:
        text = str(error)
        if match := NOT_A_NUMBER.search(text):
            raise DataError(
                f"{path}, row {match['row']}, column {names[int(match['column'])]!r}: found {match['cell']!r} where a "
                f"number is needed: {text_remedy}"
            ) from error
        if match := NOT_UTF8.search(text):
            raise DataError(
                f"{path}, row {match['row']}, column {names[int(match['column'])]!r}: is not in UTF-8: save it in UTF-8"
            ) from error
        if match := WRONG_LENGTH.search(text):
            raise DataError(
                f"{path}, row {match['row']}: has {match['cells']} cells, but the header has {match['names']}: put "
                "cells that contain commas in quotes, or remove the row"
            ) from error
        reason = " ".join(text.split())
        raise DataError(f"{path}: cannot be read ({reason}): if it is damaged or incomplete, get it again") from error


def import_arrow(part: str = "") -> ModuleType:
    """Import `pyarrow` or a module of it when a table is read.

    `pyarrow` is an extra. Raises `DataError` if it is missing.
    """
    from importlib import import_module

    try:
        return import_module(f"pyarrow.{part}".rstrip("."))
    except ImportError as error:
        raise DataError(
            f"tables are read with pyarrow, which is missing: pip install 'crfl[tables]' ({error})"
        ) from error
