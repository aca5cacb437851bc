"""A small sweep that several tests share."""

from __future__ import annotations

from typing import Any

from crfl_core.runs.run_directory import RunDirectory

SMALL = {
    "name": "small",
    "rounds": 3,
    "attack": {"type": "model-replacement", "clients": [1], "rounds": [2], "scale": 10.0},
    "votes": {"models": 16},
    "certificates": ["paper"],
    "storage": {"figures": []},
}
"""A run on the embedded digits that takes a moment."""


def small(**sweep: Any) -> dict[str, Any]:
    """Return the small config with a `[sweep]` table."""
    return {**SMALL, "sweep": sweep}


def different_files(one: RunDirectory, other: RunDirectory) -> list[str]:
    """List the files in which two runs differ, bit for bit; which rounds were played where may differ."""
    names = (one.digests | other.digests).keys() - {"environment.json"}
    return sorted(name for name in names if one.digests.get(name) != other.digests.get(name))
