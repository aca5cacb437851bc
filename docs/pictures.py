"""Draw the pictures of docs/figures.md: `python -m docs.pictures`."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from crfl_reports.figures import image_of
from matplotlib.figure import Figure
from PIL import Image

from crfl_core import RunResult, plot, run

FOLDER = Path(__file__).parent / "pictures"
COLOURS = 96
NAMES = ("curves", "rounds", "weights", "samples", "flips", "closeness", "matrix", "partition")

ATTACKED: dict[str, Any] = {
    "rounds": 20,
    "partition": {"type": "dirichlet", "clients": 20, "alpha": 1.0},
    "training": {"learning_rate": 0.3, "steps": 5, "batch_size": 16},
    "server": {"clip_norm": 15.0, "noise_std": 0.01},
    "attack": {
        "type": "dba",
        "clients": [0, 1, 2, 3],
        "rounds": {"first": 6},
        "scale": 2.0,
        "steps": 20,
        "poisoned_per_batch": 6,
        "trigger": {"type": "pixels", "norm": 2.8, "size": 2},
    },
    "certificates": [],
    "storage": {"keep": "models", "figures": []},
}
"""The embedded digits with four attackers and no defence."""

CERTIFIED: dict[str, Any] = {
    "rounds": 30,
    "dtype": "float64",
    "model": {"type": "softmax", "features": {"type": "unit-ball", "radius": 4.0}},
    "partition": {"type": "iid", "clients": 50},
    "training": {"learning_rate": 0.5, "steps": 5, "batch_size": 32, "weight_decay": 0.003},
    "server": {"clip_norm": 30.0, "noise_std": 0.05},
    "attack": {"type": "model-replacement", "clients": [0], "rounds": [6], "scale": 2.0, "poisoned_per_batch": 4},
    "certificates": [{"type": "pathwise-linear", "levels": ["client"]}],
    "storage": {"figures": []},
}
"""One attacker among 50 clients, and a certificate of the model."""


def figures(folder: Path) -> Iterator[tuple[str, Figure]]:
    """Run the examples and return every figure of the gallery, by name."""

    def made(name: str, config: dict[str, Any], **changes: Any) -> RunResult:
        return run(config | changes, out=folder / name)

    plain, rfa = made("plain", ATTACKED), made("rfa", ATTACKED, aggregation="rfa")
    clean, median = made("clean", ATTACKED, attack="none"), made("median", ATTACKED, aggregation="median")
    flip = {"type": "label-flip", "clients": [0, 1, 2, 3], "rounds": {"first": 6}, "scale": 2.0, "steps": 20}
    flipped = [made(f"flip-{rule}", ATTACKED, attack=flip, aggregation=rule) for rule in ("fedavg", "rfa", "median")]
    yield "curves", plot([made(f"seed-{seed}", CERTIFIED, seed=seed) for seed in range(3)], "curves")
    yield "rounds", plot([plain, rfa, clean], "rounds")
    yield (
        "closeness",
        plot([plain, clean, rfa, made("clean-rfa", ATTACKED, attack="none", aggregation="rfa")], "closeness"),
    )
    yield "matrix", plot([plain, rfa, median, *flipped], "matrix")
    yield "weights", rfa.plot("weights")
    for name in ("samples", "flips", "partition"):
        yield name, plain.plot(name)


def save(png: bytes, path: Path) -> None:
    """Write a picture with a palette, at a third of the size."""
    Image.open(io.BytesIO(png)).convert("RGB").quantize(COLOURS).save(path, optimize=True)


def main() -> None:
    """Run, draw and write."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for name, figure in figures(Path(folder)):
            save(image_of(figure, "png"), FOLDER / f"{name}.png")


if __name__ == "__main__":
    main()
