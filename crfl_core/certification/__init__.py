"""From votes to guarantees. `formulas` are pure functions; `engine` puts the questions."""

from crfl_core.certification import formulas

__all__ = ["formulas"]
