"""The sweep files of the figures, and one sweep of all figures of a dataset, so that they share training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crfl_core import load_config
from crfl_core.config.loading import read_source
from crfl_core.plugin_api.dataset import FileDataset
from crfl_experiments.sweeps.cells import Definition, define
from crfl_experiments.sweeps.sweep_table import flat
from crfl_experiments.sweeps.values import parsed

SWEEPS, SOUND = (Path(__file__).parent / folder for folder in ("sweeps", "sound"))
TABLE = "table1.toml"
FIGURE = "let.figure"
"""The key that says to which figure a cell belongs."""

SHARED = ("fixed", "seeds")
"""Parts of a `[sweep]` table that are for all of its cells."""

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
"""What `--fast` sets: few test samples, and fewer, larger steps."""


SHARED_KEYS = ("dataset", "reserve", "partition", "rounds", "model.features", "attack.trigger", "engine", "device")
"""Keys of which settings count for sound certificates as well; training and votes are others there."""

SOUND_SEEDS = 1
"""With more the sound certificate is not run: its numbers differ much less between seeds than those of the paper."""

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
"""What `--authors` sets: where the published code does not do what the paper says."""


@dataclass(frozen=True)
class Question:
    """How the figures are to be measured: with how many seeds, how large, and with which other settings.

    `authors`: as the published code does it, where that is not what the paper says.
    """

    seeds: int = 5
    fast: bool = False
    overrides: tuple[str, ...] = ()
    authors: bool = False

    def settings(self, dataset: str) -> dict[str, Any]:
        """What counts in every cell, whatever a figure says."""
        fast = FAST[dataset] if self.fast else {}
        return {**(AUTHORS[dataset] if self.authors else {}), **fast, **self._own}

    def sound_settings(self, dataset: str) -> dict[str, Any]:
        """What counts in every cell of the sound certificate."""
        given = {**(FAST[dataset] if self.fast else {}), **self._own}
        return {key: value for key, value in given.items() if key.startswith(SHARED_KEYS)}

    def folder(self, dataset: str) -> str:
        """Where the runs of a dataset lie: other questions have other ones."""
        return "-".join(
            [dataset, *(["authors"] if self.authors else []), *(["fast"] if self.fast else []), f"{self.seeds}"]
        )

    @property
    def _own(self) -> dict[str, Any]:
        given = dict(override.partition("=")[::2] for override in self.overrides)
        return {key.strip(): parsed(raw.strip()) for key, raw in given.items()}


def sweep_file(dataset: str, figure: str) -> Path:
    """The sweep file of a figure."""
    return SWEEPS / dataset / f"{figure}.toml"


def combined(dataset: str, figures: Sequence[str], question: Question) -> Definition:
    """One sweep with the cells of all these figures; `let.figure` tells them apart."""
    tree, _ = read_source(SWEEPS / dataset / TABLE)
    settings = question.settings(dataset)
    items = [item(dataset, figure, settings) for figure in figures]
    table = {"seeds": question.seeds, "list": items} | ({"fixed": settings} if settings else {})
    return Definition(tree, table, f"the figures of {dataset}")


def item(dataset: str, figure: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """A figure's own sweep as an item of a list; what counts in every cell replaces what the figure holds fixed.

    A figure that certifies nothing goes on doing so.
    """
    table = define(sweep_file(dataset, figure)).table
    fixed = {key: value for key, value in flat(table.get("fixed", {})).items() if key not in settings or value == []}
    return {FIGURE: figure, **fixed, **{part: value for part, value in table.items() if part not in SHARED}}


def sound(dataset: str, question: Question) -> Definition:
    """The sweep of the sound certificate."""
    found = define(SOUND / f"{dataset}.toml")
    settings = question.sound_settings(dataset)
    table = {**found.table, "seeds": min(question.seeds, SOUND_SEEDS)} | ({"fixed": settings} if settings else {})
    return Definition(found.tree, table, f"the sound certificates on {dataset}")


def missing_data(dataset: str, question: Question) -> str:
    """What to do about the files of a dataset that are not there; empty if all are."""
    tree, _ = read_source(SWEEPS / dataset / TABLE)
    overrides = [one for one in question.overrides if not one.startswith("let.")]
    plugin = load_config(tree, overrides=overrides).config.dataset
    if not isinstance(plugin, FileDataset):
        return ""
    source = plugin.source()
    split = f"-{getattr(plugin, 'split', '')}-"
    names = [file.name for file in source.files]
    needed = [name for name in names if split in name] or names  # nobody needs the files of other splits
    return source.how_to_get if any(source.find(name, plugin.path) is None for name in needed) else ""
