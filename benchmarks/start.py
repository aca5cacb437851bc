"""From `crfl run` to the first line that says how far training is, in a terminal, beside `import torch` alone.

Seconds are those of the processor. The digits are the default data; the others need neither scikit-learn nor a file.
Below stand the ten imports that take longest by themselves, of those that `import torch` does not make anyway.
"""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.timing import Seconds, report

TURNS = 3
LINE = b"training  "
SLOWEST = 10
TORCH = ["-c", f"import torch, time; print({LINE.decode()!r}, flush=True); time.sleep(60)"]
CASES = {"digits": (), "synthetic data": ("--set", "dataset=synthetic", "--set", "attack=none")}
IMPORT_TIMER = """
import importlib.machinery, sys, time
names, spent, file = [], [0.0], open(sys.argv.pop(1), "w", buffering=1)
executed = importlib.machinery.SourceFileLoader.exec_module
created = importlib.machinery.ExtensionFileLoader.create_module

def timed(work, name_of):
    def call(loader, given):
        started = time.process_time()
        spent.append(0.0)
        try:
            return work(loader, given)
        finally:
            took = time.process_time() - started
            file.write(f"{took - spent.pop():.6f} {name_of(given)}\\n")
            spent[-1] += took
    return call

importlib.machinery.SourceFileLoader.exec_module = timed(executed, lambda module: module.__name__)
importlib.machinery.ExtensionFileLoader.create_module = timed(created, lambda spec: spec.name)
"""
"""Writes the seconds that every import takes by itself into a file, as they are made."""


@contextmanager
def start_process(arguments: list[str], folder: Path) -> Iterator[tuple[int, str]]:
    """Start Python in a terminal until it shows the line; yield its id and its output.

    Compiled files are kept in a folder, as those of an installed package are.
    """
    environment = os.environ | {"PYTHONPYCACHEPREFIX": str(folder / "compiled"), "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, *arguments], stdout=theirs, stderr=theirs, stdin=subprocess.DEVNULL, env=environment
    )
    os.close(theirs)
    shown = b""
    try:
        while LINE not in shown:
            try:
                shown += os.read(ours, 65536)
            except OSError:  # the child has ended
                sys.exit(f"{' '.join(arguments)[:60]} ended before training:\n{shown.decode(errors='replace')}")
        yield child.pid, shown.decode(errors="replace")
    finally:
        child.kill()
        child.wait()
        os.close(ours)


def seconds_of(process: int) -> float:
    """Return the processor time that a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def seconds_until_line(arguments: list[str], folder: Path) -> float:
    """Measure processor seconds from the start of a process to the line."""
    with start_process(arguments, folder) as (process, _):
        return seconds_of(process)


def import_seconds(source: str, folder: Path, *arguments: str) -> dict[str, float]:
    """Measure the seconds that every import takes by itself."""
    file = folder / "imports"
    with start_process(["-c", IMPORT_TIMER + source, str(file), *arguments], folder):
        pass
    lines = (line.split() for line in file.read_text(encoding="utf-8").splitlines() if line.count(" ") == 1)
    return {name: float(seconds) for seconds, name in lines}


def main() -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        for case, options in CASES.items():
            run = ["run", *options, "--force", "--out", str(folder / "run")]
            alone = []
            ours = []
            for turn in range(TURNS + 1):  # the first reads files from the disk, and compiles them
                once = seconds_until_line(TORCH, folder), seconds_until_line(["-m", "crfl_core", *run], folder)
                if turn:
                    alone.append(once[0])
                    ours.append(once[1])
            times = Seconds.of(ours), Seconds.of(alone)
            detail = f"{times[0]:.2f} s / {times[1]:.2f} s"
            ratio = times[0] / times[1]
            report(f"from crfl run to training / import torch, {case}", ratio, "at most 1.5", detail=detail)
            source = "import crfl_core.__main__"
            anyway = import_seconds(TORCH[1], folder)
            found = import_seconds(source, folder, *run)
            print_slowest({name: seconds for name, seconds in found.items() if name not in anyway})


def print_slowest(found: dict[str, float]) -> None:
    """Print the slowest imports, and how many there are."""
    slowest = sorted(found.items(), key=lambda entry: -entry[1])[:SLOWEST]
    print(f"{len(found)} imports beside those of torch, {sum(found.values()):.2f} s; the slowest:")
    for name, seconds in slowest:
        print(f"  {1000 * seconds:6.1f} ms  {name}")
