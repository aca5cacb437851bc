"""What a run was made with, as its environment.json says."""

from __future__ import annotations

import json
from pathlib import Path

from crfl_core.absent import Requirement, Used


def used_plugins(directory: Path) -> Used:
    """Where a run took its plugins from; nothing if its environment.json is missing or says something else."""
    try:
        content = json.loads((directory / "environment.json").read_text(encoding="utf-8"))
        return {
            (plugin["kind"], plugin["name"]): Requirement(plugin["distribution"], plugin["version"])
            for plugin in content["plugins"]
        }
    except (OSError, ValueError, KeyError, TypeError):
        return {}
