"""Small runs, watched by the plugins of a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import crfl_core
from crfl_core import RunResult
from crfl_core.extend import Plugin

SMALL = {
    "rounds": 3,
    "dataset": {"type": "digits", "test_samples": 40},
    "partition": {"type": "iid", "clients": 5},
    "training": {"learning_rate": 0.5, "steps": 2, "batch_size": 16},
    "server": {"clip_norm": 5.0, "noise_std": 0.0},
    "votes": {"models": 16, "noise_std": 0.05},
    "engine": {"type": "local", "threads": 1},
}


def run(path: Path, *trackers: type[Plugin], **settings: Any) -> RunResult:
    """A run whose config names these trackers, in this order."""
    named = {f"tracker-{number}": tracker for number, tracker in enumerate(trackers)}
    return crfl_core.run(SMALL | {"trackers": list(named)} | settings, out=path / "run", plugins=named)
