"""The CRFL paper, figure by figure: what each varies, what the paper says of it, and whether that is so.

Figures are sweep files (`sweeps/`), which are run together, so that they share training (`sweeping`). What a claim of
the paper comes to is a test of numbers over seeds (`claims`); which figure makes which claim stands in the `book`.
Numbers are read from finished cells (`readings`), drawn (`drawing`) and set beside the claims on one page (`page`).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from crfl_experiments.paper.reproduction import Reproduction as Reproduction
    from crfl_experiments.paper.reproduction import reproduce as reproduce

HOMES = {"reproduce": "reproduction", "Reproduction": "reproduction"}
"""Modules that define public names; they are imported when they are first used, because PyTorch comes along."""

__all__ = ["Reproduction", "reproduce"]


def __getattr__(name: str) -> object:
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{HOMES[name]}"), name)
