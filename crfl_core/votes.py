"""What is asked of the final model on a test set, and the answer."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from crfl_core.table import Table

VoteKind = Literal["logits", "monte-carlo", "exact", "continuations"]
VoteBound = Literal["two-stage", "one-stage", "bonferroni", "hoeffding"]


class VoteSettings(Table):
    """The `[votes]` table of a config: the defaults for every certificate that votes."""

    models: int = Field(1000, ge=1, description="noisy copies of the model, M")
    selection_models: int = Field(
        100, ge=1, description="further copies that only select the class, for two-stage bounds"
    )
    noise_std: float | None = Field(
        None, ge=0, description="test noise sigma_T; unset: the server's noise in the final round"
    )
    alpha: float = Field(0.001, gt=0, lt=1, description="probability with which a certificate may be wrong")
    bound: VoteBound = Field("two-stage", description="how sound certificates bound probabilities from counts")


class VoteOverrides(Table):
    """The `votes` table of one certificate: what it wants different from the run's `[votes]`."""

    models: int | None = Field(None, ge=1, description="noisy copies of the model, M")
    selection_models: int | None = Field(None, ge=1, description="further copies that only select the class")
    noise_std: float | None = Field(None, ge=0, description="test noise sigma_T")
    alpha: float | None = Field(None, gt=0, lt=1, description="probability of a wrong certificate")
    bound: VoteBound | None = Field(None, description="how probabilities are bounded from counts")

    def apply(self, settings: VoteSettings) -> VoteSettings:
        """The settings with these overrides."""
        return settings.model_copy(update=self.model_dump(exclude_none=True))


@dataclass(frozen=True)
class VoteRequest:
    """What a certificate wants to know about the model. Equal requests are computed once.

    "logits": the model's own. "monte-carlo": how often each class wins among `models` copies with Gaussian noise of
    `noise_std` on every parameter. "exact": the same probabilities in closed form. "continuations": votes of
    re-trained continuations from round `resample_from` on.
    """

    kind: VoteKind
    models: int = 0
    noise_std: float = 0.0
    selection_models: int = 0
    resample_from: int | None = None

    @property
    def digest(self) -> str:
        """Names the file that holds the answer."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Votes:
    """The answer to a request on one test set of m samples.

    `input_norms` are those behind the feature map, (m,). Exactly the fields that the request's kind calls for are set:
    `logits` (m, C); or `counts` (m, C) and, if asked for, `selection_counts`; or, for exact votes of linear models, the
    logarithms of the probabilities of the first class, of the second, and of all but the first. `settings` are those of
    the certificate that asked; they are not part of the stored answer.
    """

    request: VoteRequest
    settings: VoteSettings
    labels: NDArray[np.int64]
    input_norms: NDArray[np.float64]
    logits: NDArray[np.float64] | None = None
    counts: NDArray[np.int64] | None = None
    selection_counts: NDArray[np.int64] | None = None
    log_p_a: NDArray[np.float64] | None = None
    log_p_b: NDArray[np.float64] | None = None
    log_rest: NDArray[np.float64] | None = None
