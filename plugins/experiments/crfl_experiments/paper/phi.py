"""Figure 9(b): growth of the radius with the rounds after the attack, for each rho / sigma. Formulas alone."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from crfl_core import formulas
from crfl_experiments.paper.sweep_files import SWEEPS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from crfl_experiments.paper.claims import Margins

NAME = "phi"
TITLE = "The Gaussian CDF in the radius"
NUMBER = "Figure 9(b)"
QUOTATION = (
    "When rho/sigma is larger than certain threshold, the certified radius does not change much when T increases"
)
SECTION = "Section 6.2, Effect of Training Rounds"
WORDS = (
    "from the first T to the last, the radius grows at the smallest rho / sigma at least tenfold, and at the "
    "largest by at most 1 %"
)
NOTE = (
    "The paper speaks of numerical issues of Phi. There are none here, logarithms keep the product exact: "
    "2 Phi(200) - 1 is so close to 1 that no number of rounds one could play changes the radius."
)
BESIDE = (
    "No second line: the product of Phi belongs to the paper's argument. Sound certificates forget an attack by weight "
    "decay, or hide it behind noise that is drawn again; neither depends on rho / sigma, and how the rounds count for "
    "them is in the figure of T."
)


class Study:
    """The radius for every rho / sigma and every T, with p_A, p_B and the attack of the grid in `sweeps/phi.toml`."""

    def __init__(self) -> None:
        grid = tomllib.loads((SWEEPS / "phi.toml").read_text())
        self.ratios: Sequence[float] = grid["ratios"]
        self.rounds: Sequence[int] = grid["rounds"]
        budget = formulas.kl_budget(grid["p_a"], grid["p_b"])
        strength = grid["weight"] * grid["scale"] * grid["steps"] * grid["learning_rate"] * grid["poison_ratio"]
        self.log_radii = np.array(
            [
                [
                    formulas.log_radius(
                        budget,
                        noise_std=grid["noise_std"],
                        lipschitz=formulas.gradient_lipschitz(grid["attacked_clip_norm"]),
                        strengths=[strength],
                        contraction=self._contraction(ratio, rounds - grid["attacked"]),
                    )
                    for rounds in self.rounds
                ]
                for ratio in self.ratios
            ]
        )

    @staticmethod
    def _contraction(ratio: float, later: int) -> float:
        return formulas.log_contraction([ratio] * later, [1.0] * later)

    @property
    def growth(self) -> list[float]:
        """Return the growth of the radius for each rho / sigma.

        The growth is the radius at the last T divided by the radius at the first T.
        """
        with np.errstate(over="ignore"):
            return [float(one) for one in np.exp(self.log_radii[:, -1] - self.log_radii[:, 0])]

    def margins(self) -> Margins:
        """Return numbers that are positive where the claim is true."""
        growth = self.growth
        return {"smallest": [growth[0] - 10.0], "largest": [1.01 - growth[-1]]}

    def measured_text(self) -> str:
        """Return what was measured, in a line."""
        parts = [f"{factor:.4g} at {ratio:g}" for ratio, factor in zip(self.ratios, self.growth, strict=True)]
        return f"growth from T = {self.rounds[0]} to {self.rounds[-1]}: {', '.join(parts)}"

    def figure(self) -> Figure:
        """Draw the radius against T, a line for each rho / sigma."""
        from crfl_reports.figures import Line, lines_figure

        lines = [
            Line(f"rho / sigma = {ratio:g}", self.rounds, np.exp(each))
            for ratio, each in zip(self.ratios, self.log_radii, strict=True)
        ]
        return lines_figure(lines, x_label="T", y_label="certified radius", log_y=True)
