"""Reference values of the formulas: 50-digit arithmetic, inputs as exact decimals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

VECTORS: list[dict[str, Any]] = json.loads(Path(__file__).with_name("reference_values.json").read_text())["vectors"]
EVERY_ROUND: dict[str, list[dict[str, Any]]] = json.loads(
    Path(__file__).with_name("reference_values_2.json").read_text()
)


def vectors(kind: str) -> list[Any]:
    """Parameters (inputs, outputs) of a test, one for each reference value of a kind; outputs are numbers."""
    chosen = [vector for vector in VECTORS if vector["kind"] == kind]
    assert chosen, f"no reference values of kind {kind!r}"
    return [pytest.param(vector["inputs"], numbers(vector["outputs"]), id=vector["id"]) for vector in chosen]


def numbers(outputs: dict[str, Any]) -> dict[str, Any]:
    return {name: value["float"] if isinstance(value, dict) else value for name, value in outputs.items()}


def every_round(kind: str) -> list[Any]:
    """Parameters (case,) of a test, one for each reference value of a kind of the second file."""
    return [pytest.param(case, id=f"{kind}-{place}") for place, case in enumerate(EVERY_ROUND[kind])]
