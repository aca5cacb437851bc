"""What benchmarks measured, as a file: the machine, versions, and every ratio with its spread."""

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
MEASURED = Path(__file__).with_name("measured.json")
"""What docs/performance.md is written from."""
PACKAGES = ("crfl", "torch", "numpy", "scipy", "pydantic", "scikit-learn", "byzfl", "pfl", "flwr", "ray", "pyarrow")
DIGITS = 4


class BadResults(Exception):
    """A file of results that cannot be read; the sentence names it and says what to do."""


@dataclass(frozen=True)
class Result:
    """A ratio by its name, from where to where it spread over turns or repetitions, and what it should be."""

    name: str
    ratio: float
    low: float
    high: float
    target: str

    @property
    def direction(self) -> int:
        """1 if more is better, -1 if less is, 0 if the target does not say."""
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

    def including(self, earlier: Results) -> Results:
        """With what another file has of other benchmarks, if it is from the same machine and versions."""
        if (earlier.machine, earlier.versions) != (self.machine, self.versions):
            return self
        return replace(self, benchmarks=dict(sorted({**earlier.benchmarks, **self.benchmarks}.items())))


def here(benchmarks: Mapping[str, Sequence[Result]]) -> Results:
    """Results of this machine, measured now."""
    now = datetime.now(UTC).isoformat(timespec="minutes")
    return Results(machine(), versions(), {name: tuple(found) for name, found in benchmarks.items()}, now)


def machine() -> dict[str, Any]:
    """What ratios depend on least and seconds most: processor, cores, memory, system and threads."""
    import torch

    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "threads": torch.get_num_threads(),
    }


def processor() -> str:
    """The name of the processor, where the system tells it."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or "unknown")


def versions() -> dict[str, str]:
    """Python, and of what takes part or is compared with what is installed."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def together(repetitions: Sequence[Sequence[Result]]) -> tuple[Result, ...]:
    """Several repetitions of a benchmark as one: medians, spread from the least to the largest.

    Results of one name within a repetition are numbered.
    """
    by_name: dict[str, list[Result]] = {}
    for results in repetitions:
        for result in numbered(results):
            by_name.setdefault(result.name, []).append(result)
    return tuple(merged(found) for found in by_name.values())


def merged(found: Sequence[Result]) -> Result:
    """The same ratio, measured once or several times."""
    if len(found) == 1:
        return found[0]
    ratios = [result.ratio for result in found]
    return replace(found[0], ratio=median(ratios), low=min(ratios), high=max(ratios))


def numbered(results: Iterable[Result]) -> list[Result]:
    """The same results with names of their own."""
    seen: dict[str, int] = {}
    named = []
    for result in results:
        count = seen[result.name] = seen.get(result.name, 0) + 1
        named.append(replace(result, name=f"{result.name} [{count}]") if count > 1 else result)
    return named


def write(results: Results, path: Path) -> None:
    """As JSON, with as many digits as a measurement has."""
    shortened = {
        name: [{key: short(value) for key, value in asdict(result).items()} for result in found]
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


def short(value: object) -> object:
    """A number with four significant digits."""
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def read(path: Path) -> Results:
    """What `write` wrote; `BadResults` if it is something else."""
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
        raise BadResults(f"{path} is no file of results: write one with python -m benchmarks --save {path}") from error
