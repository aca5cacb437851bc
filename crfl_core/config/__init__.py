"""The config of a run: its schema, and how files, inheritance and overrides become one frozen object."""

from crfl_core.config.loading import LoadedConfig, dump_config, load_config
from crfl_core.config.merging import Origins
from crfl_core.config.schema import Evaluation, RunConfig, Seeds, Server, Storage, Training

__all__ = [
    "Evaluation",
    "LoadedConfig",
    "Origins",
    "RunConfig",
    "Seeds",
    "Server",
    "Storage",
    "Training",
    "dump_config",
    "load_config",
]
