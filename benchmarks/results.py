"""Results of benchmarks as a file: the machine, versions, and every ratio with its spread."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

FORMAT = 1
RESULTS_FILE = Path(__file__).with_name("measured.json")
"""What docs/performance.md is written from."""
PACKAGES = ("crfl", "torch", "numpy", "scipy", "pydantic", "scikit-learn", "byzfl", "pfl", "flwr", "ray", "pyarrow")
DIGITS = 4


class BadResults(Exception):
    """File of results that cannot be read; the message names it and says what to do."""


@dataclass(frozen=True)
class Result:
    """Ratio with its name, its spread over turns or repetitions, and its target."""

    name: str
    ratio: float
    low: float
    high: float
    target: str

    @property
    def direction(self) -> int:
        """Return 1 if more is better, -1 if less is, 0 if the target does not say."""
        if self.target.startswith("at least"):
            return 1
        return -1 if self.target.startswith(("at most", "below")) else 0


@dataclass(frozen=True)
class Results:
    """Results by benchmark, and where and when they were measured."""

    machine: Mapping[str, Any]
    versions: Mapping[str, str]
    benchmarks: Mapping[str, tuple[Result, ...]]
    measured: str = ""

    def with_earlier(self, earlier: Results) -> Results:
        """Add another file's other benchmarks, if machine and versions are the same."""
        if (earlier.machine, earlier.versions) != (self.machine, self.versions):
            return self
        return replace(self, benchmarks=dict(sorted({**earlier.benchmarks, **self.benchmarks}.items())))


def new_results(benchmarks: Mapping[str, Sequence[Result]]) -> Results:
    """Return results of this machine, measured now."""
    now = datetime.now(UTC).isoformat(timespec="minutes")
    return Results(machine(), versions(), {name: tuple(found) for name, found in benchmarks.items()}, now)


def machine() -> dict[str, Any]:
    """Return processor, cores, memory, system and threads, on which seconds depend."""
    import torch

    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "threads": torch.get_num_threads(),
    }


def processor() -> str:
    """Return the name of the processor, where the system tells it."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or "unknown")


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages measured or compared with."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def merge_repetitions(repetitions: Sequence[Sequence[Result]]) -> tuple[Result, ...]:
    """Merge repetitions of a benchmark: medians, with spreads from least to largest.

    Results of one name within a repetition are numbered.
    """
    by_name: dict[str, list[Result]] = {}
    for results in repetitions:
        for result in number_names(results):
            by_name.setdefault(result.name, []).append(result)
    return tuple(merge_results(found) for found in by_name.values())


def merge_results(found: Sequence[Result]) -> Result:
    """Merge measurements of one ratio."""
    if len(found) == 1:
        return found[0]
    ratios = [result.ratio for result in found]
    return replace(found[0], ratio=median(ratios), low=min(ratios), high=max(ratios))


def number_names(results: Iterable[Result]) -> list[Result]:
    """Number results of the same name."""
    seen: dict[str, int] = {}
    named = []
    for result in results:
        count = seen[result.name] = seen.get(result.name, 0) + 1
        named.append(replace(result, name=f"{result.name} [{count}]") if count > 1 else result)
    return named


def write(results: Results, path: Path) -> None:
    """Write results as JSON, with as many digits as a measurement has."""
    shortened = {
        name: [{key: round_digits(value) for key, value in asdict(result).items()} for result in found]
        for name, found in results.benchmarks.items()
    }
    text = {
        "format": FORMAT,
        "measured": results.measured,
        "machine": results.machine,
        "versions": results.versions,
        "benchmarks": shortened,
    }
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(json.dumps(text, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)


def round_digits(value: object) -> object:
    """Round a number to four significant digits."""
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def read(path: Path) -> Results:
    """Read a file of results. Raises `BadResults`."""
    try:
        text = json.loads(path.read_text(encoding="utf-8"))
        if text["format"] != FORMAT:
            raise BadResults(f"{path} has format {text['format']}, this version reads {FORMAT}: measure again")
        benchmarks = {
            name: tuple(Result(**{**result, "ratio": float(result["ratio"])}) for result in found)
            for name, found in text["benchmarks"].items()
        }
        return Results(text["machine"], text["versions"], benchmarks, text["measured"])
    except OSError as error:
        raise BadResults(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadResults(
            f"{path} is not a file of results: write one with python -m benchmarks --save {path}"
        ) from error
