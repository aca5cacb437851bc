"""`crfl new`: a package for one plugin, complete and working before its author edits a line."""

from crfl_commands.scaffold.names import Names, ScaffoldError
from crfl_commands.scaffold.package import LICENCES, create, files

__all__ = ["LICENCES", "Names", "ScaffoldError", "create", "files"]
