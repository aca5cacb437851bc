"""What plugins are made of: the base class of every kind, what flows through them, hooks and errors.

The core runs plugins; this package says what a plugin is, and knows nothing of how it is run. Plugin authors import it
through `crfl_core.extend`, which is the part of it that is promised.
"""
