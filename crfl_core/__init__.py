"""Certifiably robust federated learning: a small core, and plugins for everything else.

What `__init__.pyi` lists is public; a plugin needs nothing else. Names are imported when they are first used, so
`import crfl_core` costs next to nothing and PyTorch is loaded late.
"""

import lazy_loader

from crfl_core.deprecation import current_name

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    return _load(current_name(name))
