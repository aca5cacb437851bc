"""`crfl new`: a package for one plugin, complete and working before its author edits a line."""

from crfl_core.scaffold.names import Names
from crfl_core.scaffold.package import LICENCES, create, files

__all__ = ["LICENCES", "Names", "create", "files"]
