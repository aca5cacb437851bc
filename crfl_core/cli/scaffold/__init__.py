"""`crfl new`: a package for a plugin, or one more in a package, complete and working before its author edits a line."""

from crfl_core.cli.scaffold.addition import Package, add
from crfl_core.cli.scaffold.names import Names, ScaffoldError
from crfl_core.cli.scaffold.package import LICENCES, create, files

__all__ = ["LICENCES", "Names", "Package", "ScaffoldError", "add", "create", "files"]
