"""Receipts: what a number in a paper can be traced to its run by, in one small page."""

from __future__ import annotations

from typing import Any

from crfl_core.errors import StoreError
from crfl_core.records.ledger import RunFacts
from crfl_core.runs.run_directory import RunDirectory

VERSION = 1


def receipt_of(directory: RunDirectory) -> dict[str, Any]:
    """What is to be known about a finished run: digests of its files and its data, and the versions that took part."""
    if not directory.is_sealed:
        raise StoreError(f"{directory.path}: has no manifest: finish it with `crfl resume {directory.path}`")
    facts = directory.read_facts("ledger.json", RunFacts)
    environment = directory.read_json("environment.json")
    return {
        "receipt": VERSION,
        "run": directory.path.resolve().name,
        "manifest": directory.status["manifest"],
        "files": directory.digests,
        "data": {name: found.model_dump() for name, found in facts.test_sets.items()},
        "versions": {name: value for name, value in environment.items() if name not in ("from_round", "origins")},
    }
