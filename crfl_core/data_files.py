"""Published data files, as plugins see them; see `crfl_files.published`."""

from crfl_files.published import CACHE_DIR as CACHE_DIR
from crfl_files.published import DATA_DIR as DATA_DIR
from crfl_files.published import DataFile as DataFile
from crfl_files.published import DataSource as DataSource
from crfl_files.published import FileStatus as FileStatus
from crfl_files.published import UserPath as UserPath
from crfl_files.published import cache_dir as cache_dir
from crfl_files.published import data_cache as data_cache
from crfl_files.published import exists as exists
from crfl_files.published import find_or_explain as find_or_explain
from crfl_files.published import sha256 as sha256
