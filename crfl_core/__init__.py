"""The framework of CRFL: everything but the plugins.

It has the names for people who run, which `import crfl` has as well; `crfl_core.extend` has what plugins are made of.
Names are imported when they are first used, so `import crfl_core` does not load PyTorch.
"""

from crfl_core.lazy_exports import attach

_load, __dir__, __all__ = attach(__name__, __file__)


def __getattr__(name: str) -> object:
    from crfl_core.extend import __all__ as extension_names

    if name not in __all__ and name in extension_names:
        raise AttributeError(f"crfl_core.{name}: import it from crfl_core.extend, which has what plugins are made of")
    return _load(name)
