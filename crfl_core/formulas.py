"""The mathematics of certification for people who calculate: all that `crfl_core.certification.formulas` has."""

from crfl_core.certification.formulas import *  # noqa: F403
from crfl_core.certification.formulas import __all__ as __all__
