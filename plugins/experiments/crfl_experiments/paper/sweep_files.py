"""Sweep files of the paper: one for each dataset with all of its figures, which share training, and a sound one.

`sweeps/<dataset>.toml` holds Table 1 of the paper and one item of `sweep.list` for every figure;
`sweeps/<dataset>-sound.toml` asks a sound certificate the same questions. `crfl sweep` runs either file as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crfl_core import load_config
from crfl_core.plugin_api.dataset import FileDataset
from crfl_experiments.sweeps.cells import Definition, define
from crfl_experiments.sweeps.sweep_table import PARTS, flatten_settings
from crfl_experiments.sweeps.values import parse_value

SWEEPS = Path(__file__).parent / "sweeps"
FIGURE_KEY = "let.figure"
"""Key that says to which figure a cell belongs."""

FAST: dict[str, dict[str, Any]] = {
    # A fifth of the images and steps at five times the rate: tau eta, and so every radius, is the paper's.
    "mnist": {
        "dataset.train_samples": 12000,
        "dataset.test_samples": 400,
        "training.steps": 6,
        "training.learning_rate": 0.005,
        "let.epoch": 120,
        "let.rate": 0.005,
    },
    "loan": {"dataset.test_samples": 400, "training.steps": 13, "training.learning_rate": 0.011},
    "emnist": {
        "dataset.train_samples": 20000,
        "dataset.test_samples": 400,
        "training.steps": 2,
        "training.learning_rate": 0.035,
    },
}
"""Settings of `--fast`: few test samples, and fewer, larger steps."""


KEYS_OF_BOTH = ("dataset", "reserve", "partition", "rounds", "model.features", "attack.trigger", "engine", "device")
"""Keys whose settings hold for the sound certificate as well; its training and votes differ."""

MOST_SOUND_SEEDS = 1
"""Seeds of the sound certificate: its numbers differ much less between seeds than those of the paper."""

AUTHORS: dict[str, dict[str, Any]] = {
    dataset: {
        "certificates": [{"type": "paper", "abstains": False, **clip_norm}],
        "aggregation": [{"type": "fedavg", "weighting": "uniform"}],
        "attack.backdoored_classes": "all",
        "model.start": "random",
        **others,
    }
    for dataset, clip_norm, others in (
        ("mnist", {"attacked_clip_norm": 3.0}, {}),
        ("loan", {}, {"training.steps": 35}),
        ("emnist", {"attacked_clip_norm": 4.0}, {"training.steps": 174}),
    )
}
"""Settings of `--authors`: where the published code does not do what the paper says."""


@dataclass(frozen=True)
class ReproductionOptions:
    """Options of measuring the figures: number of seeds, size, and settings that replace others.

    `fast` takes few test samples and fewer, larger steps; `authors` does what the published code does where the paper
    says something else; `overrides` are `key=value` texts.
    """

    seeds: int = 5
    fast: bool = False
    overrides: tuple[str, ...] = ()
    authors: bool = False

    def settings(self, dataset: str) -> dict[str, Any]:
        """Return the settings of every cell of the paper's figures.

        They override what a figure says.
        """
        authors = AUTHORS[dataset] if self.authors else {}
        return {**authors, **self._fast_settings(dataset), **self._override_settings()}

    def sound_settings(self, dataset: str) -> dict[str, Any]:
        """Return the settings of every cell of the sound certificate."""
        settings = {**self._fast_settings(dataset), **self._override_settings()}
        return {key: value for key, value in settings.items() if key.startswith(KEYS_OF_BOTH)}

    def folder(self, dataset: str) -> str:
        """Return the name of the folder with a dataset's runs.

        Other options give other names.
        """
        parts = [dataset]
        if self.authors:
            parts.append("authors")
        if self.fast:
            parts.append("fast")
        return "-".join([*parts, str(self.seeds)])

    def _fast_settings(self, dataset: str) -> dict[str, Any]:
        if not self.fast:
            return {}
        other_data = self._names_other_data(dataset)
        return {key: value for key, value in FAST[dataset].items() if not (other_data and key.startswith("dataset."))}

    def _names_other_data(self, dataset: str) -> bool:
        """Return whether an override takes another dataset.

        That dataset may have fewer samples than `--fast` takes.
        """
        settings = self._override_settings()
        chosen = settings.get("dataset")
        named = settings.get("dataset.type", chosen.get("type") if isinstance(chosen, Mapping) else chosen)
        return named is not None and str(named).rpartition(":")[2] != dataset

    def _override_settings(self) -> dict[str, Any]:
        settings = {}
        for override in self.overrides:
            key, _, raw = override.partition("=")
            settings[key.strip()] = parse_value(raw.strip())
        return settings


def figures_sweep(dataset: str, options: ReproductionOptions) -> Definition:
    """Build the sweep with the cells of all figures of a dataset.

    `let.figure` tells the figures apart.
    """
    definition = define(SWEEPS / f"{dataset}.toml")
    settings = options.settings(dataset)
    items = [override_item(item, settings) for item in definition.table["list"]]
    table: dict[str, Any] = {"seeds": options.seeds, "list": items}
    if settings:
        table["fixed"] = settings
    return Definition(definition.tree, table, f"the figures of {dataset}")


def override_item(item: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Drop from an item what the settings of every cell replace.

    A figure that certifies nothing keeps doing so.
    """
    parts = {key: value for key, value in item.items() if key in PARTS}
    figure_settings = flatten_settings({key: value for key, value in item.items() if key not in PARTS})
    kept = {key: value for key, value in figure_settings.items() if key not in settings or value == []}
    return {**kept, **parts}


def sound_sweep(dataset: str, options: ReproductionOptions) -> Definition:
    """Build the sweep of the sound certificate."""
    definition = define(SWEEPS / f"{dataset}-sound.toml")
    settings = options.sound_settings(dataset)
    table = {**definition.table, "seeds": min(options.seeds, MOST_SOUND_SEEDS)}
    if settings:
        table["fixed"] = settings
    return Definition(definition.tree, table, f"the sound certificates on {dataset}")


def missing_data_remedy(dataset: str, options: ReproductionOptions) -> str:
    """Return the command that brings a dataset's missing files.

    The text is empty if no file is missing.
    """
    tree = define(SWEEPS / f"{dataset}.toml").tree
    overrides = [override for override in options.overrides if not override.startswith("let.")]
    plugin = load_config(tree, overrides=overrides).config.dataset
    if not isinstance(plugin, FileDataset):
        return ""
    source = plugin.source()
    split = f"-{getattr(plugin, 'split', '')}-"
    names = [file.name for file in source.files]
    needed = [name for name in names if split in name] or names  # files of other splits are not needed
    is_missing = any(source.find(name, plugin.path) is None for name in needed)
    return source.how_to_get if is_missing else ""
