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

Level = Literal["feature", "sample", "client"]
"""What a radius counts: the change of an input, the share of poisoned samples, or the number of malicious clients."""

Statement = Literal["pathwise", "tail", "marginal"]
Direction = Literal["backward", "forward"]
"""How a guarantee may be read. "backward": about a run that may have been attacked, and its own clean world, in which
the attackers behave. "forward": about the run as it is, and attacks that might come instead of what was submitted."""
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)
RoundScope = Literal["stated", "any", "every"]
"""For attacks in which rounds a certificate has numbers: those that the threat states, unknown ones as well, or all."""
ABSTAIN = -1
"""The prediction of a classifier that is not sure enough."""


@dataclass(frozen=True)
class Check:
    """One assumption, and whether it holds in this run.

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
    """What a certificate says about the m samples of one test set at one level.

    `prediction` is `ABSTAIN` and `radius` NaN where nothing is certified. The radius is a norm (feature level), a
    poison ratio (sample level) or a number of clients (client level); `log_radius` stays finite where it overflows.
    `p_a` and `p_b` are the bounds used on the probabilities of the first and second class. `count` is the radius as a
    number of samples of every attacker (sample level) or of clients (client level), None at the feature level.
    """

    prediction: NDArray[np.int64]
    radius: NDArray[np.float64]
    log_radius: NDArray[np.float64]
    p_a: NDArray[np.float64]
    p_b: NDArray[np.float64]
    count: NDArray[np.float64] | None = None

    @property
    def abstained(self) -> NDArray[np.bool_]:
        """Which samples got no prediction."""
        return np.equal(self.prediction, ABSTAIN)


@dataclass(frozen=True)
class CertificateResult:
    """A guarantee with everything that it is conditional on. Built by the core, not by certificates.

    `directions` are the readings that hold, none for a certificate that claims no soundness. `label` is empty for a
    sound certificate, else says what kind of number this is. `conditional` lists what the guarantee additionally hangs
    on; empty if nothing. `rounds` says when attacks are assumed; `any_round` is the guarantee if they come in as many
    rounds and nobody knows in which, unless that was not asked.
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


class Certificate(Plugin):
    """A pure function of (ledger, votes, threat). Never looks at data, model or files."""

    levels_offered: ClassVar[tuple[Level, ...]] = ("feature",)
    statement: ClassVar[Statement]
    sound: ClassVar[bool] = True
    label: ClassVar[str] = ""
    """What to print beside every number of a certificate that is not sound."""
    groups: ClassVar[bool] = False
    """Whether it is about the vote of groups, each with a model of its own. Others are about one model."""

    name: str | None = Field(None, pattern=r"^[A-Za-z0-9._-]+$", description="name in the report; default: its type")
    levels: tuple[Level, ...] | None = Field(None, description="questions to answer; default: all that it can")
    votes: VoteOverrides = Field(VoteOverrides(), description="what differs from the run's [votes]")

    @property
    def title(self) -> str:
        """The name in reports and files."""
        return self.name or self.configured_as.rpartition(":")[2]

    @property
    def full_name(self) -> str:
        """Messages also give the name in reports, if it is another one."""
        return super().full_name if self.name is None else f"{self.name!r}, {super().full_name},"

    def rounds_to_resample(self, attacked: tuple[int, ...]) -> tuple[int, ...]:  # noqa: ARG002
        """Rounds whose model before noise must be kept, so that noise can be drawn again from there."""
        return ()

    def stages_to_add(self, cap_updates: bool | None) -> tuple[Mapping[str, Any], ...]:  # noqa: ARG002
        """Stages to put in front of the aggregation unless they are in it, as tables of a config.

        `cap_updates` is `server.cap_updates`: True asks for the stage that caps updates, None leaves it to the
        certificate. It is not asked if that says false.
        """
        return ()

    def round_scope(self) -> RoundScope:
        """Whether it knows only the rounds that a threat states, or what `Threat.rounds_at_most` means as well.

        Then runs show that answer, too, from the same votes. "every": the numbers hold whatever rounds are attacked.
        """
        return "stated"

    @abstractmethod
    def request(self, ledger: Ledger, threat: Threat, settings: VoteSettings) -> VoteRequest:
        """What this certificate wants to know about the model."""

    @abstractmethod
    def audit(self, ledger: Ledger, threat: Threat) -> tuple[Check, ...]:
        """Every assumption of this certificate, with what was found in the run."""

    @abstractmethod
    def certify(self, ledger: Ledger, votes: Votes, threat: Threat, level: Level) -> Guarantee:
        """The guarantee for all samples of a test set at once."""

    def clean_world(self, threat: Threat) -> str:
        """The world that the attacked run is compared with."""
        return threat.clean_world
