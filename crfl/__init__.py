"""CRFL for people who run: train, attack, aggregate and certify a federation, and compare runs.

The names are those of `__init__.pyi`. Each is imported when it is first used, so `import crfl` does not load PyTorch.
Authors of plugins import `crfl_core.extend` instead.
"""

from crfl_core.lazy_exports import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
