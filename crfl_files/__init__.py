"""Files that people write and fetch: configs that extend each other, and published data.

A config file is read (`reading`) and merged onto what it extends (`trees`), overrides reach into it (`overrides`), and
every value remembers where it was written (`origins`), so that an error can say so. Data files are found by name and
known by their checksum (`published`). Nothing here knows what the values mean.
"""

from crfl_files.errors import ConfigError, CrflError, DataError
from crfl_files.origins import DEFAULT, KeyPath, Origins, explain
from crfl_files.overrides import apply_override
from crfl_files.published import (
    DataFile,
    DataSource,
    FileStatus,
    UserPath,
    cache_dir,
    data_cache,
    data_dirs,
    exists,
    find_or_explain,
    sha256,
)
from crfl_files.reading import read_file
from crfl_files.trees import Tree, leaves, merge

__all__ = [
    "DEFAULT",
    "ConfigError",
    "CrflError",
    "DataError",
    "DataFile",
    "DataSource",
    "FileStatus",
    "KeyPath",
    "Origins",
    "Tree",
    "UserPath",
    "apply_override",
    "cache_dir",
    "data_cache",
    "data_dirs",
    "exists",
    "explain",
    "find_or_explain",
    "leaves",
    "merge",
    "read_file",
    "sha256",
]
