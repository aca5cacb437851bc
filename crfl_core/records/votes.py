"""Votes: what a certificate requests about the final model on a test set, and the answer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from crfl_core.errors import PluginFailure
from crfl_core.records.table import Table

VoteKind = Literal["logits", "monte-carlo", "exact", "continuations", "groups", "group-rankings", "group-distances"]
VoteBound = Literal["two-stage", "one-stage", "bonferroni", "hoeffding"]
VotesType = TypeVar("VotesType", bound="Votes")


MOST_MODELS = 10**8
"""The largest number of noisy models: more would vote for weeks, and tell nothing that fewer do not."""


class VoteSettings(Table):
    """`[votes]` table of a config: the defaults of every certificate that votes."""

    models: int = Field(1000, ge=1, le=MOST_MODELS, description="noisy copies of the model, M")
    selection_models: int = Field(
        100, ge=1, le=MOST_MODELS, description="further copies that only select the class, for two-stage bounds"
    )
    noise_std: float | None = Field(
        None, ge=0, description="test noise sigma_T; unset: the server's noise in the final round"
    )
    alpha: float = Field(0.001, gt=0, lt=1, description="probability with which a certificate may be wrong")
    bound: VoteBound = Field("two-stage", description="how sound certificates bound probabilities from counts")


class VoteOverrides(Table):
    """`votes` table of one certificate: its differences from the run's `[votes]`."""

    models: int | None = Field(None, ge=1, le=MOST_MODELS, description="noisy copies of the model, M")
    selection_models: int | None = Field(
        None, ge=1, le=MOST_MODELS, description="further copies that only select the class"
    )
    noise_std: float | None = Field(None, ge=0, description="test noise sigma_T")
    alpha: float | None = Field(None, gt=0, lt=1, description="probability of a wrong certificate")
    bound: VoteBound | None = Field(None, description="how probabilities are bounded from counts")

    def apply(self, settings: VoteSettings) -> VoteSettings:
        """Return the settings with these overrides."""
        return settings.model_copy(update=self.model_dump(exclude_none=True))


@dataclass(frozen=True)
class VoteRequest:
    """Request of a certificate for votes of the final model. Equal requests are computed once.

    "logits": the model's own. "monte-carlo": how often each class wins among `models` copies with Gaussian noise of
    `noise_std` on every parameter. "exact": the same probabilities in closed form. "continuations": votes of
    re-trained continuations from round `resample_from` on. "groups": what the model of each group says.
    "group-rankings": the same, and how it ranks all classes. "group-distances": the vote of each group, and how far
    the features of a sample must move to change it.
    """

    kind: VoteKind
    models: int = 0
    noise_std: float = 0.0
    selection_models: int = 0
    resample_from: int | None = None

    @property
    def digest(self) -> str:
        """Return the name of the file that holds the answer."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def answer_type(self) -> type[Votes]:
        """Return the class of the answer."""
        return VOTES_BY_KIND[self.kind]

    @property
    def needs_training(self) -> bool:
        """Return whether the answer needs rounds to be trained again.

        Training them takes long.
        """
        return self.kind == "continuations"


@dataclass(frozen=True)
class Votes:
    """Answer to a request on one test set of m samples: `LogitVotes`, `CountVotes`, `ExactVotes` or
    `GroupVotes`.

    `input_norms` are those behind the feature map, (m,). `settings` are those of the certificate that asked; they are
    not part of the stored answer.
    """

    request: VoteRequest
    settings: VoteSettings
    labels: NDArray[np.int64]
    input_norms: NDArray[np.float64]

    @classmethod
    def array_names(cls) -> tuple[str, ...]:
        """Return the names of the arrays.

        Each array has an entry or a row per sample.
        """
        return tuple(field.name for field in fields(cls) if field.name not in ("request", "settings"))

    def expect(self, kind: type[VotesType]) -> VotesType:
        """Return these votes as the type that `certify` reads.

        Raises `PluginFailure` if `request` asked for others.
        """
        if not isinstance(self, kind):
            raise PluginFailure(
                f"request() asked for {self.request.kind!r}, which are {type(self).__name__}, and certify() reads "
                f"{kind.__name__}: ask for what is read"
            )
        return self


@dataclass(frozen=True)
class LogitVotes(Votes):
    """The model's own logits, (m, C)."""

    logits: NDArray[np.float64]


@dataclass(frozen=True)
class CountVotes(Votes):
    """How many models choose each class, (m, C). Those of `selection` voted apart, to select the class; it is all zero
    if the request wants no such models.
    """

    counts: NDArray[np.int64]
    selection: NDArray[np.int64]


@dataclass(frozen=True)
class ExactVotes(Votes):
    """Probabilities under noise in closed form, for linear models: the class that wins, and the logarithms of its
    probability, of the second class's, and of all but the first's together, (m,) each.
    """

    winner: NDArray[np.int64]
    log_p_a: NDArray[np.float64]
    log_p_b: NDArray[np.float64]
    log_rest: NDArray[np.float64]


@dataclass(frozen=True)
class GroupVotes(Votes):
    """What the model of each of the G groups says: its class, and by how much its logit is above the second, (m, G).

    A group whose training failed votes for class 0, by nothing.
    """

    ballots: NDArray[np.int64]
    gaps: NDArray[np.float64]


@dataclass(frozen=True)
class GroupRankings(GroupVotes):
    """Votes of groups, and the place of every class in the ranking of each group by its logits, (m, G, C).

    Places are 0 to C - 1; of equal logits the lower class comes first. A group whose training failed ranks the classes
    by their numbers.
    """

    ranks: NDArray[np.uint16]


@dataclass(frozen=True)
class GroupDistances(GroupVotes):
    """Votes of groups, and how far the features of a sample must move to change each, (m, G), rounded down.

    The distance is Euclidean, 0 where it is not known because the model is not linear. A group whose training failed
    votes for class 0 whatever the input is: its distance is 1e300.
    """

    distances: NDArray[np.float64]


VOTES_BY_KIND: Mapping[VoteKind, type[Votes]] = {
    "logits": LogitVotes,
    "monte-carlo": CountVotes,
    "exact": ExactVotes,
    "continuations": CountVotes,
    "groups": GroupVotes,
    "group-rankings": GroupRankings,
    "group-distances": GroupDistances,
}
