"""`python -m benchmarks [NAME ...]` runs all benchmarks, or those named: every module here that is not support code.

`--save` writes what they measured into a file, `--compare OLD` says what got slower than an earlier file had it.
"""

from __future__ import annotations

import argparse
import pkgutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from benchmarks import timing
from benchmarks.comparison import compare
from benchmarks.results import RESULTS_FILE, BadResults, Result, Results, merge_repetitions, new_results, read, write

SUPPORT = {"__main__", "comparison", "peaks", "peer_rounds", "random_images", "results", "round_runner", "timing"}


def benchmark_names() -> list[str]:
    """Return the names of all benchmarks."""
    found = pkgutil.iter_modules([str(Path(__file__).parent)])
    return [module.name for module in found if module.name not in SUPPORT]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; return the exit status."""
    asked = parse_arguments(arguments)
    try:
        old = None if asked.compare is None else read(asked.compare)
        new = (
            run_benchmarks(asked.names or benchmark_names(), asked.repeat, asked.save)
            if asked.new is None
            else read(asked.new)
        )
    except BadResults as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if old is None:
        return 0
    lines, slower = compare(old, new)
    print("\n".join(lines))
    return int(slower)


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse names and options; an unknown name ends the program."""
    parser = argparse.ArgumentParser("python -m benchmarks", description="Benchmarks that print ratios.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="benchmarks to run; all if none is named")
    parser.add_argument(
        "--save",
        nargs="?",
        type=Path,
        const=RESULTS_FILE,
        metavar="FILE",
        help=f"write machine, versions and ratios, by default into benchmarks/{RESULTS_FILE.name}; other benchmarks "
        "that the file has from the same machine and versions stay",
    )
    parser.add_argument("--compare", type=Path, metavar="OLD", help="say what got slower than in this file: status 1")
    parser.add_argument("--new", type=Path, metavar="FILE", help="with --compare: measure nothing, read this file")
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="measure every benchmark N times")
    asked = parser.parse_intermixed_args(arguments)
    for name in asked.names:
        if name not in benchmark_names():
            parser.error(f"there is no benchmark {name!r}: there are {', '.join(benchmark_names())}")
    if asked.repeat < 1:
        parser.error(f"--repeat must be at least 1, found {asked.repeat}")
    if asked.save is not None and not asked.save.parent.is_dir():
        parser.error(f"--save: there is no folder {asked.save.parent}")
    if asked.new is not None and (asked.compare is None or asked.save is not None or asked.names):
        parser.error("--new goes with --compare and with nothing else")
    return asked


def run_benchmarks(names: Sequence[str], repeat: int, path: Path | None) -> Results:
    """Run benchmarks, and write the results after each of them if a path is given."""
    found: dict[str, tuple[Result, ...]] = {}
    results = new_results(found)
    earlier = read(path) if path is not None and path.exists() else results
    if (earlier.machine, earlier.versions) != (results.machine, results.versions):
        print(f"{path} is from another machine or other versions: it is replaced")
    for name in names:
        print(f"== {name}")
        found[name] = merge_repetitions([run_benchmark(name) for _ in range(repeat)])
        results = replace(results, benchmarks=found).with_earlier(earlier)
        if path is not None:
            write(results, path)
    return results


def run_benchmark(name: str) -> list[Result]:
    """Run a benchmark once, and return what it reports."""
    timing.RESULTS.clear()
    import_module(f"benchmarks.{name}").main()
    return list(timing.RESULTS)


if __name__ == "__main__":
    sys.exit(main())
