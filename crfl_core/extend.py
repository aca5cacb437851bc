"""What plugins are made of: every base class, what flows through it, and the ground that certificates stand on.

What `extend.pyi` lists is public; a plugin needs nothing else. Names are imported when they are first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub("crfl_core", __file__)
