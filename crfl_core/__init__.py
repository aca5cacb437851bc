"""Certifiably robust federated learning: a small core, and plugins for everything else.

What `__init__.pyi` lists is for people who run; `crfl_core.extend` has what plugins are made of. Names are imported
when they are first used, so `import crfl_core` costs next to nothing and PyTorch is loaded late.
"""

from crfl_core.lazy_exports import attach

_load, __dir__, __all__ = attach(__name__, __file__)

RENAMED = {
    "Aggregate": "RuleResult",
    "Certified": "CertificateResult",
    "Staged": "StageResult",
    "Trained": "LocalUpdates",
}
"""Names of plugin API 1 that say better what they are since API 2."""


def __getattr__(name: str) -> object:
    from crfl_core.extend import __all__ as extending

    current = RENAMED.get(name, name)
    if name not in __all__ and current in extending:
        raise AttributeError(
            f"crfl_core.{name} is crfl_core.extend.{current} since plugin API 2: "
            "docs/writing-plugins/api-contract.md says how to migrate"
        )
    return _load(name)
