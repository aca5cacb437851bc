"""Whether a place holds what an undisturbed command leaves behind: the same files with the same bits, nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.oracle import contents

OURS = (".lock", ".replaced")
"""Files that say which process works here; they mean nothing when none does."""


def differences(found: Path, expected: Path) -> list[str]:
    """In what a run differs from another one, apart from who played which rounds."""
    if not found.is_dir():
        return [f"{found.name} is not there"]
    ours, theirs = entries(found), entries(expected)
    problems = [f"{found.name}/{name} is missing" for name in sorted(theirs - ours)]
    problems += [f"{found.name}/{name} is left over" for name in sorted(ours - theirs)]
    mine, yours = contents(found), contents(expected)
    problems += [
        f"{found.name}/{name} differs" for name in sorted(mine.keys() & yours.keys()) if mine[name] != yours[name]
    ]
    if not problems and environment(found) != environment(expected):
        problems.append(f"{found.name}/environment.json differs")
    return problems


def leftovers(place: Path) -> list[str]:
    """What lies beside the run though nothing should."""
    return [f"{entry.name} lies beside the run" for entry in sorted(place.iterdir()) if entry.name != "run"]


def entries(path: Path) -> set[str]:
    """Every file and folder below a path."""
    return {entry.relative_to(path).as_posix() for entry in path.rglob("*") if entry.name not in OURS}


def environment(run: Path) -> dict[str, Any]:
    """Which versions took part, and where the config was written, without from which round on."""
    said: dict[str, Any] = json.loads((run / "environment.json").read_text())
    return {key: value for key, value in said.items() if key not in ("from_round", "earlier", "sha256")}
