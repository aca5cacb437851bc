"""From votes to guarantees: `questions` puts certificates to a run; the rest is the ground that they stand on."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, ["assumptions"])
