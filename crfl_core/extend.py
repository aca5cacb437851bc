"""Names for plugins: every base class, what flows through it, and the ground that certificates stand on.

What `extend.pyi` lists is public; a plugin needs nothing else. Names are imported when they are first used.
"""

from crfl_core.lazy_exports import attach

_load, __dir__, __all__ = attach("crfl_core.extend", __file__)


def __getattr__(name: str) -> object:
    value = globals()[name] = _load(name)
    return value
