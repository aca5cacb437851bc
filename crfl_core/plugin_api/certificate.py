"""Certificates: from the ledger, the votes and a threat to a guarantee for every prediction."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from crfl_core.plugin_api.base import Plugin
from crfl_core.records.ledger import Ledger
from crfl_core.records.threat import Threat
from crfl_core.records.votes import VoteOverrides, VoteRequest, Votes, VoteSettings

Level = Literal["feature", "sample", "client", "backdoor"]
"""Unit of a radius: the change of a poisoned input, the share of poisoned samples, the number of malicious clients, or
the norm of a trigger on the test input, on top of the threat's malicious clients."""

Statement = Literal["pathwise", "tail", "marginal"]
Direction = Literal["backward", "forward"]
"""Reading of a guarantee. "backward": the run may have been attacked, and is compared with its clean world, in which
the attackers behave. "forward": the run is taken as it is, and compared with attacks that might have come instead."""
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)
RoundScope = Literal["stated", "any", "every"]
"""Attacked rounds that a certificate covers: those that the threat states, unknown rounds as well, or every round."""
ABSTAIN = -1
"""Prediction of a classifier that abstains."""


@dataclass(frozen=True)
class Check:
    """Assumption of a certificate, and whether it holds in this run.

    "held": verified on the ledger. "declared": relied upon, not verifiable. "failed": does not hold; this refuses the
    certificate, or only one `level` of it, or only the reading in one `direction`, unless `refuses` is False, which
    only a certificate that claims no soundness may set.
    """

    name: str
    status: Literal["held", "declared", "failed"]
    measured: str = ""
    required: str = ""
    remedy: str = ""
    refuses: bool = True
    level: Level | None = None
    direction: Direction | None = None


@dataclass(frozen=True)
class Guarantee:
    """Guarantee of a certificate for the m samples of one test set at one level.

    `prediction` is `ABSTAIN` and `radius` NaN where nothing is certified. The radius is a norm (feature level), a
    poison ratio (sample level), a number of clients (client level) or the norm of a trigger (backdoor level);
    `log_radius` stays finite where it overflows. `p_a` and `p_b` are the bounds used on the probabilities of the first
    and second class. `count` is the radius as a number of samples of every attacker (sample level) or of clients
    (client level), None at the other levels.
    """

    prediction: NDArray[np.int64]
    radius: NDArray[np.float64]
    log_radius: NDArray[np.float64]
    p_a: NDArray[np.float64]
    p_b: NDArray[np.float64]
    count: NDArray[np.float64] | None = None

    @property
    def abstained(self) -> NDArray[np.bool_]:
        """Return which samples have no prediction."""
        return np.equal(self.prediction, ABSTAIN)


@dataclass(frozen=True)
class CollectiveGuarantee:
    """How much of a labelled test set stays right if one set of clients is malicious for all of its samples.

    For each number of `clients`, `right` is how many samples stay right at least, whichever clients these are; None if
    that was not computed. `exact` says that some such clients leave no more. It is about the test set as a whole, and
    says of no single prediction that it stays.

    >>> CollectiveGuarantee(clients=(1, 2), right=(95, 80), exact=(True, False)).right
    (95, 80)
    """

    clients: tuple[int, ...]
    right: tuple[int | None, ...]
    exact: tuple[bool, ...]


@dataclass(frozen=True)
class CertificateResult:
    """Guarantee with all its conditions. The core builds it, not the certificate.

    `directions` are the readings that hold, none for a certificate that claims no soundness. `label` is empty for a
    sound certificate, else says what kind of number this is. `conditional` lists what the guarantee additionally hangs
    on; empty if nothing. `rounds` says when attacks are assumed; `any_round` is the guarantee if they come in as many
    rounds and it is not known in which, None if that was not computed. `by_clients` has the guarantees of the backdoor
    level for 0, 1, 2, ... malicious clients, as far as any sample is certified.
    """

    certificate: str
    level: Level
    test_set: str
    statement: Statement
    directions: tuple[Direction, ...]
    clean_world: str
    label: str
    conditional: tuple[str, ...]
    labels: NDArray[np.int64]
    guarantee: Guarantee
    rounds: str = ""
    any_round: Guarantee | None = None
    by_clients: tuple[Guarantee, ...] = ()


class Certificate(Plugin):
    """Pure function of (ledger, votes, threat). It never sees data, model or files."""

    levels_offered: ClassVar[tuple[Level, ...]] = ("feature",)
    statement: ClassVar[Statement]
    sound: ClassVar[bool] = True
    label: ClassVar[str] = ""
    """Text beside every number of a certificate that is not sound."""
    groups: ClassVar[bool] = False
    """Whether it certifies the vote of groups, each with its own model, instead of one model."""
    votings: ClassVar[tuple[str, ...]] = ("plurality",)
    """Rules of `groups.voting` that it certifies; a run with another one refuses it."""

    name: str | None = Field(None, pattern=r"^[A-Za-z0-9._-]+$", description="name in the report; default: its type")
    levels: tuple[Level, ...] | None = Field(None, description="questions to answer; default: all that it can")
    votes: VoteOverrides = Field(VoteOverrides(), description="what differs from the run's [votes]")

    @property
    def title(self) -> str:
        """Return the name in reports and files."""
        return self.name or self.configured_as.rpartition(":")[2]

    @property
    def full_name(self) -> str:
        """Return the name as in messages.

        The name in reports is added if it differs.
        """
        return super().full_name if self.name is None else f"{self.name!r}, {super().full_name},"

    def rounds_to_resample(self, attacked: tuple[int, ...]) -> tuple[int, ...]:  # noqa: ARG002
        """Return the rounds whose model before noise must be kept.

        So noise can be drawn again.
        """
        return ()

    def stages_to_add(self, cap_updates: bool | None) -> tuple[Mapping[str, Any], ...]:  # noqa: ARG002
        """Return stages to put in front of the aggregation.

        They are tables of a config and are added unless they are in it. `cap_updates` is `server.cap_updates`: True
        asks for the stage that caps updates, None leaves the choice to the certificate. The core does not call this
        method if it is false.
        """
        return ()

    def round_scope(self) -> RoundScope:
        """Return which attacked rounds the certificate covers: "stated", "any" or "every".

        With "any" it also covers `Threat.rounds_at_most`, and runs show that answer from the same votes. With "every"
        its numbers hold whichever rounds are attacked.
        """
        return "stated"

    @abstractmethod
    def request(self, ledger: Ledger, threat: Threat, settings: VoteSettings) -> VoteRequest:
        """Return which votes of the model the certificate needs."""

    @abstractmethod
    def audit(self, ledger: Ledger, threat: Threat) -> tuple[Check, ...]:
        """Check every assumption of the certificate on the ledger."""

    @abstractmethod
    def certify(self, ledger: Ledger, votes: Votes, threat: Threat, level: Level) -> Guarantee:
        """Return the guarantee for all samples of a test set at once."""

    def certify_together(
        self,
        ledger: Ledger,  # noqa: ARG002
        votes: Votes,  # noqa: ARG002
        threat: Threat,  # noqa: ARG002
        clients: tuple[int, ...],  # noqa: ARG002
    ) -> CollectiveGuarantee | None:
        """Return a guarantee about a whole test set.

        It says how much stays right under one set of malicious clients. None if nothing is known.
        """
        return None

    def clean_world(self, threat: Threat) -> str:
        """Return the clean world that the attacked run is compared with."""
        return threat.clean_world
