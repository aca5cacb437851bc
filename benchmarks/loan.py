"""Loading a table as large as the paper's: 1.8 million loans in the 145 columns of the published file.

Compared with pyarrow, which only parses the same file and drops what it parsed. Each in a process of its own.
"""

from __future__ import annotations

import csv
import io
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from crfl_datasets.loan import STATES, STATUSES
from crfl_datasets.loan_columns import FEATURES, TEXTS

from benchmarks.timing import report

ROWS = 1_808_534
ROWS_AT_ONCE = 20_000
OTHER_COLUMNS = 53

LOAD = """
from crfl_datasets.loan import Loan
data = Loan(path=sys.argv[1]).load()
assert data.x.shape[1] == 90 and len(data.x) + len(data.test_x) == int(sys.argv[2])
"""
PARSE = """
import pyarrow.csv
options = pyarrow.csv.ParseOptions(newlines_in_values=True)
assert sum(rows.num_rows for rows in pyarrow.csv.open_csv(sys.argv[1], parse_options=options)) == int(sys.argv[2])
"""
MEASURING_CODE = """
import resource, sys, time
started = time.perf_counter()
{}
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, time.perf_counter() - started)
"""


def write(path: Path) -> None:
    """Write random loans, a third of whose numbers is missing."""
    generator = np.random.default_rng(0)
    columns: dict[str, list[str]] = {}
    for name in FEATURES:
        if name in TEXTS:
            columns[name] = [f"{name} {value}" for value in generator.integers(7, size=ROWS_AT_ONCE)]
        else:
            numbers = np.round(generator.exponential(1000, ROWS_AT_ONCE), int(generator.integers(3)))
            columns[name] = np.where(generator.random(ROWS_AT_ONCE) < 1 / 3, "", numbers.astype(str)).tolist()
    columns["addr_state"] = [STATES[state] for state in generator.integers(len(STATES), size=ROWS_AT_ONCE)]
    columns["loan_status"] = [STATUSES[status] for status in generator.integers(len(STATUSES), size=ROWS_AT_ONCE)]
    columns |= {
        f"unused_{number}": ["" if number % 2 else "Jan-2015"] * ROWS_AT_ONCE for number in range(OTHER_COLUMNS)
    }
    lines = io.StringIO()
    csv.writer(lines, lineterminator="\n").writerows(zip(*columns.values(), strict=True))
    body = lines.getvalue().splitlines(keepends=True)
    with path.open("w") as file:
        file.write(",".join(columns) + "\n")
        for first in range(0, ROWS, ROWS_AT_ONCE):
            file.writelines(body[: ROWS - first])


def measure(source: str, path: Path) -> tuple[float, float]:
    """Measure the peak of memory in GiB and the seconds that a piece of code takes."""
    command = [sys.executable, "-c", MEASURING_CODE.format(source), str(path), str(ROWS)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    peak, seconds = map(float, done.stdout.split())
    return peak, seconds


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "loan.csv"
        write(path)
        print(f"{ROWS:,} loans, {len(FEATURES) + 2 + OTHER_COLUMNS} columns, {path.stat().st_size / 2**30:.2f} GiB")
        _, parsed = measure(PARSE, path)
        peak, loaded = measure(LOAD, path)
        print(f"seconds: load {loaded:.1f}  pyarrow parses {parsed:.1f}")
        report("GiB at the peak of loading 1.8 million loans", peak, "below 4")
        report("time to load them, split and scaled / pyarrow parsing the file", loaded / parsed, "at most 2")
