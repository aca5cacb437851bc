"""Special functions of SciPy, imported when the first one is called: the import takes a tenth of a start."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scipy.special import betainccinv, betaincinv, erf, erfc, erfcx, log_ndtr, logsumexp, ndtr, ndtri, ndtri_exp

__all__ = [
    "betainccinv",
    "betaincinv",
    "erf",
    "erfc",
    "erfcx",
    "log_ndtr",
    "logsumexp",
    "ndtr",
    "ndtri",
    "ndtri_exp",
]


def __getattr__(name: str) -> object:
    """Import a function of scipy.special on its first use, and keep it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from scipy import special

    function: object = getattr(special, name)
    globals()[name] = function
    return function
