"""`crfl new`: a package for a plugin, or one more in a package, complete and working before its author edits a line."""

from crfl_core.cli.scaffold.addition import Package, add_to_package
from crfl_core.cli.scaffold.names import PluginNames, ScaffoldError
from crfl_core.cli.scaffold.package import LICENCES, package_files, write_package

__all__ = ["LICENCES", "PluginNames", "Package", "ScaffoldError", "add_to_package", "write_package", "package_files"]
