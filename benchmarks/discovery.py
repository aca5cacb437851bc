"""What 50 installed plugins, and 50 commands, cost the help, which lists commands, and a look at all plugins."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.timing import best_times, report

PLUGINS = 50
SOURCE = 'raise SystemExit("imported")\ndef plugin():\n    """Would do something."""\n'
LISTING = "from crfl_core.plugin_loading.registry import Registry; Registry().found"


def main() -> None:
    compared = {
        "crfl --help": (["-m", "crfl_core", "--help"], "aggregators", "at most 1.5"),
        "crfl --help, all listed": (["-m", "crfl_core", "--help"], "commands", "at most 1.5"),
        "discovery": (["-c", LISTING], "aggregators", "as it is: only commands that need plugins pay"),
    }
    for name, (arguments, kinds, target) in compared.items():
        with TemporaryDirectory() as folder:
            install(Path(folder), f"crfl.{kinds}")
            times = best_times({"empty": start(arguments), "full": start(arguments, folder)}, clock=children)
        added = 1000 * (times["full"] - times["empty"])
        ratio = times["full"] / times["empty"]
        report(f"{name}, {PLUGINS} {kinds} / none", ratio, target, detail=f"{added:+.0f} ms")


def children() -> float:
    """Processor time of all processes that were started: what else the machine does hardly matters."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def install(folder: Path, group: str) -> None:
    """Write what pip leaves behind of many packages, whose modules must not be imported."""
    for number in range(PLUGINS):
        module = f"crfl_benchmark_{number}"
        (folder / f"{module}.py").write_text(SOURCE)
        info = folder / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{group}]\nbenchmark-{number} = {module}:plugin\n")


def start(arguments: list[str], path: str = "") -> Callable[[], object]:
    """Run a process that starts, does its work and ends."""
    environment = os.environ | {"PYTHONPATH": path}
    return lambda: subprocess.run([sys.executable, *arguments], check=True, capture_output=True, env=environment)
