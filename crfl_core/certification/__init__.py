"""From votes to guarantees. `formulas` are pure functions; `certifier` puts the questions."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, ["assumptions", "formulas"])
