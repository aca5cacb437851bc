"""What suits a dataset: who its clients are, fixed features for a linear model, and a network."""

from __future__ import annotations

from dataclasses import dataclass

UPRIGHT = '{ type = "deskew" }'
SCATTERING = ('{ type = "scattering", angles = 4 }', '{ type = "group-norm", groups = 5 }')
STROKES = '{ type = "whiten", components = 500, floor = 60 }'
CURATED = '{ type = "whiten", on = "curator", components = 500, floor = 20 }'
FEW_STROKES = '{ type = "whiten", components = 60, floor = 20 }'
HANDWRITING = (
    "Fixed features, which no client's data change; whitening is fitted to strokes that are drawn from a seed."
)


@dataclass(frozen=True)
class Recipe:
    """Parts of a config, as TOML. All `features` are fixed before round 1 and give inputs of norm at most 1."""

    features: tuple[str, ...]
    why: str
    network: tuple[str, ...] = ('type = "mlp"', "hidden = [64]")
    owners: int | None = None
    """How many natural owners the data have, each of whom is a client; None: samples are dealt to clients."""
    curator: int | None = None
    """How many samples a trusted curator needs."""


RECIPES = {
    "digits": Recipe(
        (UPRIGHT, *SCATTERING, FEW_STROKES),
        HANDWRITING,
        network=('type = "mlp"', "hidden = [32]"),
    ),
    "mnist": Recipe((UPRIGHT, *SCATTERING, STROKES), HANDWRITING, network=('type = "cnn"',)),
    "emnist": Recipe((UPRIGHT, *SCATTERING, STROKES), HANDWRITING, network=('type = "cnn"',)),
    "fashion-mnist": Recipe(
        (*SCATTERING, CURATED),
        "Fixed features. Whitening is fitted to images of a curator, who is trusted and is no client.",
        network=('type = "cnn"',),
        curator=1000,
    ),
    "loan": Recipe(
        ('{ type = "random-fourier", outputs = 1000 }',),
        "Fixed random features. The range by which columns are scaled is declared to be public: see docs/datasets.md.",
        owners=51,
    ),
}

ANY_DATA = Recipe(
    ('{ type = "unit-ball", radius = 1.0 }',),
    "Inputs of norm at most 1, by x / max(||x||, radius): set the radius to about the median norm of inputs.",
)


def recipe_of(dataset: str) -> Recipe:
    """The recipe for a dataset; one that always works for those that nobody wrote one for."""
    return RECIPES.get(dataset.rpartition(":")[2], ANY_DATA)
