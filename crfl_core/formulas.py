"""The mathematics of certification for people who calculate: all that `crfl_formulas` has."""

from crfl_formulas import *  # noqa: F403
from crfl_formulas import __all__ as __all__
