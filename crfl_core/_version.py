"""The version of the distribution, read by the build and by `crfl --version`."""

__version__ = "0.1.0"
"""The version of this distribution."""
