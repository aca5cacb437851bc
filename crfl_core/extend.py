"""What plugins are made of: every base class, what flows through it, and the ground that certificates stand on.

What `extend.pyi` lists is public; a plugin needs nothing else. Names are imported when they are first used.
"""

import sys

import lazy_loader

_load, __dir__, __all__ = lazy_loader.attach_stub("crfl_core", __file__)


def __getattr__(name: str) -> object:
    value = globals()[name] = _load(name)
    front = vars(sys.modules["crfl_core"])
    if name not in front["__all__"]:  # lazy_loader may keep what it found in the package, where it is not public
        front.pop(name, None)
    return value
