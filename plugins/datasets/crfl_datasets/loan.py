"""Dataset `loan`: the financial data of the paper."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator

from crfl_core.extend import Data, DataError, DataFile, DataSource, Domain, FileDataset, ScalingKind, SplitDataset
from crfl_datasets import tables
from crfl_datasets.loan_columns import FEATURES, HIGHEST, TEXTS
from crfl_datasets.samples import LARGEST_FLOAT32

FILE = "loan.csv.gz"
STATUS = "loan_status"
STATE = "addr_state"
SOURCE = "source"

STATUSES = (
    "Current",
    "Fully Paid",
    "Late (31-120 days)",
    "In Grace Period",
    "Charged Off",
    "Late (16-30 days)",
    "Default",
    "Does not meet the credit policy. Status:Fully Paid",
    "Does not meet the credit policy. Status:Charged Off",
)
"""The classes, numbered as in the authors' code: the paper's target label is number 7."""

STATE_CODES = """
    AK AL AR AZ CA CO CT DC DE FL GA HI IA ID IL IN KS KY LA MA MD ME MI MN MO MS MT NC ND NE NH NJ NM NV NY OH OK OR
    PA RI SC SD TN TX UT VA VT WA WI WV WY
"""
STATES = tuple(STATE_CODES.split())

WITH_UNIT = {"term": "months", "int_rate": "%", "revol_util": "%"}
"""Columns that some published files write with a unit and others without."""


class Loan(SplitDataset, FileDataset):
    """Lending Club loans: 90 features, 9 statuses as classes, 51 US states as natural groups.

    Reads the published table with its original column names (.csv, .csv.gz or .parquet; needs `crfl[tables]`), in these
    steps:

    1. Of about 145 columns the 90 remain that the paper's preprocessing leaves: dates, identifiers, free text, and what
       is known of few loans only are dropped. The others must all be there; columns beyond them are not looked at.
    2. An empty cell is 0. Any other cell of a column of numbers must be a finite number, `NaN` is an error. "36 months"
       and "13.5%" are 36 and 13.5.
    3. Text such as `purpose` is coded by its place among the sorted texts of that column, an empty cell first. The
       authors number texts in the order in which they occur; ours does not depend on the order of the rows.
    4. `loan_status` is the label, `addr_state` the group. Rows that have neither are the summary lines of some
       published files, and left out.
    5. A share `test_fraction` of all rows is drawn for testing. (The authors draw it from each state.)
    6. `scaling = "minmax"` maps every feature to [0, 1]. The range is that of the training rows, beyond which test rows
       are clamped; the authors take it from all rows, and leave coded text unscaled.
       `scaling = "unit-range"` has ranges and texts that were written down beforehand, whatever the rows say: no client
       can move what others' features become, as certificates want it. Text that is not foreseen counts as empty.

    Several features describe what happened after the loan was given (recoveries, total_rec_prncp), as in the paper.
    """

    scaling: ScalingKind = Field(
        "minmax",
        description="`minmax` maps every feature to [0, 1], as in the paper, `unit-range` does it by declared ranges",
    )
    states: tuple[str, ...] = Field((), description="keep only loans of these states; unset: all 51")
    skip_statuses: tuple[str, ...] = Field((), description='leave out rows with these statuses, such as "Issued"')
    sources: tuple[str, ...] = Field((), description="keep only rows with these texts in a column `source`")

    @field_validator("states")
    @classmethod
    def _check_states(cls, states: tuple[str, ...]) -> tuple[str, ...]:
        for state in states:
            if state not in STATES:
                raise ValueError(f"there is no state {state!r}: use the two letters of the post, such as CT")
        return states

    @classmethod
    def source(cls) -> DataSource:
        """Describe the published table: there are several versions, without official checksums."""
        return DataSource(
            folder="loan",
            files=(DataFile(FILE, also=("accepted_2007_to_2018Q4.csv.gz", "lendingclub_real_sample.csv.gz")),),
            licence="published by Lending Club; Kaggle states CC0",
            homepage="https://www.kaggle.com/datasets/wordsforthewise/lending-club",
            how_to_get="download accepted_2007_to_2018Q4.csv.gz from the Kaggle dataset wordsforthewise/lending-club",
        )

    def read(self) -> Data:
        """Read all loans of the file, shuffled and split.

        The docstring of the class lists the steps.
        """
        path = self.file(FILE)
        x, labels, states = self._parse(path)
        train, test = self.split(len(x))
        return Data(
            x=x[train],
            y=labels[train],
            test_x=x[test],
            test_y=labels[test],
            domain=Domain(),
            class_names=STATUSES,
            feature_names=FEATURES,
            groups=states[train],
            group_names=STATES,
            ranges=(np.zeros(len(FEATURES)), np.array([HIGHEST[name] for name in FEATURES])),
        )

    def _parse(self, path: Path) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]:
        """Parse raw features, labels and states of all rows that are kept."""
        known: dict[str, dict[str, int]] = {name: {"": 0} for name in TEXTS}
        blocks = []
        labels = []
        states = []
        for block in tables.read_table(path, self._column_kinds()):
            kept, status, state = self._select_loans(block)
            columns = np.empty((len(FEATURES), len(block)), np.float32)
            for place, name in enumerate(FEATURES):
                columns[place] = read_feature(block, name, known)
            blocks.append(columns.T[kept])
            labels.append(status)
            states.append(state)
        if not sum(map(len, labels)):
            wanted = " of these states and sources" if self.states or self.sources else ""
            raise DataError(f"{path}: there are no loans in it{wanted}")
        whole = np.concatenate(blocks)
        for name, codes in known.items():
            rank = np.zeros(len(codes), np.float32)
            texts = ("", *TEXTS[name]) if self.scaling == "unit-range" else sorted(codes)
            for number, text in enumerate(texts):
                if text in codes:
                    rank[codes[text]] = number
            place = FEATURES.index(name)
            whole[:, place] = rank[whole[:, place].astype(np.int64)]
        return whole, np.concatenate(labels), np.concatenate(states)

    def _column_kinds(self) -> dict[str, tables.ColumnKind]:
        """Return the kinds of the columns that are read."""
        texts = {*TEXTS, *WITH_UNIT, STATUS, STATE, *([SOURCE] if self.sources else ())}
        return {name: "text" if name in texts else "number" for name in (*FEATURES, *sorted(texts - set(FEATURES)))}

    def _select_loans(self, block: tables.TableBlock) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Select the rows of a block that are wanted loans.

        Return their statuses and states as well.
        """
        unwanted = block.matches(STATUS, {""}) & block.matches(STATE, {""}) | block.matches(STATUS, self.skip_statuses)
        for column, wanted in ((STATE, self.states), (SOURCE, self.sources)):
            if wanted:
                unwanted |= ~block.matches(column, wanted)
        rows = np.flatnonzero(~unwanted)
        status = text_codes(block, rows, STATUS, STATUSES, "correct it, or leave such rows out with skip_statuses")
        return rows, status, text_codes(block, rows, STATE, STATES, "give the two letters of a US state")


def text_codes(
    block: tables.TableBlock, rows: NDArray[np.int64], column: str, names: tuple[str, ...], remedy: str
) -> NDArray[np.int64]:
    """Return the place of the column's text among these names.

    There is one place for each of the given rows of a block. Raises `DataError` with the remedy if a text is not among
    the names.
    """
    codes, texts = block.texts(column)
    found = np.array([names.index(text) if text in names else -1 for text in texts])[codes[rows]]
    if (found < 0).any():
        row = rows[np.argmin(found)]
        raise block.error(row, column, f"found {texts[codes[row]]!r}, not one of {', '.join(names)}: {remedy}")
    return found


def read_feature(block: tables.TableBlock, name: str, known: Mapping[str, dict[str, int]]) -> NDArray[np.float64]:
    """Read a column as numbers.

    Texts get numbers in the order in which they turn up, which `known` keeps.
    """
    if name not in TEXTS and name not in WITH_UNIT:
        return block.numbers(name, empty=0.0)
    codes, texts = block.texts(name)
    if name in TEXTS:
        values = [float(known[name].setdefault(text, len(known[name]))) for text in texts]
    else:
        values = [parse_quantity(text, WITH_UNIT[name]) for text in texts]
    column = np.array(values)[codes]
    usable = np.abs(column) <= LARGEST_FLOAT32
    if not usable.all():
        row = int(np.argmin(usable))
        raise block.error(
            row, name, f"found {texts[codes[row]]!r} where a number is needed: correct the cell or remove the row"
        )
    return column


def parse_quantity(text: str, unit: str) -> float:
    """Parse the number in a cell, with or without its unit.

    It is 0 if the cell is empty, NaN if the cell holds something else.

    >>> [parse_quantity(text, "%") for text in ("13.5", "7%", "", "high")]
    [13.5, 7.0, 0.0, nan]
    """
    try:
        return float(text.strip().removesuffix(unit) or "0")
    except ValueError:
        return math.nan
