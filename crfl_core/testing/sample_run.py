"""A small finished run for checks of certificates, its data, and altered copies of its ledger and votes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import singledispatch
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

import crfl_core.certification.formulas as formulas
from crfl_core.certification.certifier import Audit, audit_certificate, select_levels
from crfl_core.errors import PluginFailure, StoreError
from crfl_core.plugin_api.certificate import Certificate, Guarantee, Level
from crfl_core.plugin_api.dataset import Dataset
from crfl_core.plugin_loading.registry import Registry
from crfl_core.records.inputs import Data, Domain
from crfl_core.records.ledger import ClientColumns, Ledger, ModelFacts
from crfl_core.records.votes import CountVotes, ExactVotes, GroupRankings, GroupVotes, LogitVotes, Votes
from crfl_core.runs.run import run
from crfl_core.testing.suite import Case, CheckFailed, Skipped

if TYPE_CHECKING:
    from crfl_core.plugin_api.attack import Attack
    from crfl_core.plugin_api.base import Plugin
    from crfl_core.records.threat import Threat

THREATS: tuple[dict[str, Any], ...] = (
    {"clients": 1, "rounds": [2], "poison_ratio": 0.1},
    {"clients": 1, "rounds": [3], "poison_ratio": 0.1},
    {"clients": 1, "rounds": [3], "poison": "update"},
)
"""What a certificate is asked about: the first of these that its audit does not refuse altogether."""

GROUPS: tuple[dict[str, Any], ...] = (
    {"count": 10},
    {"count": 10, "by": "subsets", "size": 3},
    {"count": 10, "voting": "condorcet"},
)
"""The groups of a run for certificates that are about them, of which the first that is not refused counts, too."""


@dataclass(frozen=True)
class Trial:
    """Finished run of softmax regression on two classes: all that a certificate reads. Arrays are read-only.

    `threat` assumes one unknown attacker in the second or third of three rounds. A certificate about
    `groups` gets a run with ten of them.
    """

    certificate: Certificate
    ledger: Ledger
    threat: Threat
    votes: Votes
    groups: Mapping[str, Any] | None = None

    def audit(self, threat: Threat | None = None, ledger: Ledger | None = None) -> Audit:
        """Evaluate the certificate's assumptions on this run or on another ledger."""
        return audit_certificate(self.certificate, ledger or self.ledger, threat or self.threat)

    def certify(
        self, level: Level, threat: Threat | None = None, votes: Votes | None = None, ledger: Ledger | None = None
    ) -> Guarantee:
        """Certify the clean test set, of this run or of another ledger."""
        return self.certificate.certify(ledger or self.ledger, votes or self.votes, threat or self.threat, level)

    def allowed(self, threat: Threat | None = None) -> tuple[Level, ...]:
        """Return the levels that the audit does not refuse."""
        found = self.audit(threat)
        return tuple(level for level in found.levels if not (found.refusal or found.refusal_at(level)))

    @property
    def predictions(self) -> NDArray[np.int64]:
        """Return the predicted classes, `ABSTAIN` where the certificate abstains."""
        return self.certify(select_levels(self.certificate)[0]).prediction

    def attacked(self, attack: Attack) -> Trial:
        """Return the same run, data and noise, with an attack."""
        return run_trial(self.certificate, self.threat.model_dump(mode="json", exclude_none=True), self.groups, attack)


Search = Callable[[Trial, Level], "NDArray[np.float64] | None"]
"""An adversarial search: for each test sample of a trial the size, in units of the level's radius, of the smallest
attack that was found to change its prediction, infinite where none was; None if nothing was tried at this level."""


def find_trial(case: Case[Certificate]) -> Trial:
    """Return a trial that the certificate does not refuse.

    If it refuses all, return the last one.
    """
    *others, last = product(THREATS, GROUPS if case.plugin.groups else (None,))
    for threat, groups in others:
        with suppress(Skipped):
            trial = run_trial(case.plugin, threat, groups)
            if trial.allowed():
                return trial
    return run_trial(case.plugin, *last)


def run_trial(
    certificate: Certificate, threat: dict[str, Any], groups: Mapping[str, Any] | None, attack: Attack | None = None
) -> Trial:
    """Run a small federation that ends with this certificate."""
    plugins: dict[str, type[Plugin]] = {SPOTS: Spots, certificate.configured_as: type(certificate)}
    changes: dict[str, Any] = {"groups": groups} if groups else {}
    if attack is not None:
        plugins[attack.configured_as] = type(attack)
        changes["attack"] = attack.with_name(attack.configured_as)
    config = small_config(
        dataset={"type": SPOTS, "scaling": "none", "classes": 2, "samples": 200},
        threat=threat,
        certificates=[certificate.with_name(certificate.configured_as)],
        **changes,
    )
    with TemporaryDirectory(prefix="crfl-") as folder:
        try:
            result = run(config, out=Path(folder, "run"), plugins=plugins)
        except PluginFailure as error:
            raise CheckFailed(
                "an answer to a run of softmax regression with fedavg",
                str(error),
                "return a Guarantee for every sample, with NaN for the radius where prediction is ABSTAIN",
            ) from error
        (question,) = result.certifier.questions
        try:
            votes = result.votes(question.request, question.settings)["clean"]
        except StoreError as error:
            raise Skipped(
                f"it refuses a run of softmax regression with fedavg, without votes: {question.audit.refusal}"
            ) from error
        ledger = result.ledger
        assumed = result.threat
    return Trial(certificate, freeze_ledger(ledger), assumed, freeze_votes(votes), groups)


def freeze_ledger(ledger: Ledger) -> Ledger:
    """Return the ledger with read-only arrays."""
    return replace(
        ledger, clients=ClientColumns(**{name: freeze_array(column) for name, column in vars(ledger.clients).items()})
    )


def freeze_votes(votes: Votes) -> Votes:
    """Return the votes with read-only arrays."""
    arrays: dict[str, Any] = {
        name: freeze_array(part) for name, part in vars(votes).items() if isinstance(part, np.ndarray)
    }
    return replace(votes, **arrays)


def freeze_array(array: NDArray[Any]) -> NDArray[Any]:
    """Return a read-only copy."""
    copy = array.copy()
    copy.flags.writeable = False
    return copy


SIDE = 8
OWNERS = 10
"""How many natural owners the training samples come from, in turn."""


class Spots(Dataset):
    """Noisy images with one bright spot, which sits somewhere else in every class; or the same as tabular data."""

    samples: int = Field(500, ge=10, description="training samples; a fifth as many for testing")
    classes: int = Field(10, ge=2, le=16, description="number of classes")
    tabular: bool = Field(False, description="features with names instead of images")

    def read(self) -> Data:
        """Return the same samples every time."""
        generator = np.random.default_rng(7)
        x, y = self._draw(generator, self.samples)
        test_x, test_y = self._draw(generator, self.samples // 5)
        return Data(
            x=x,
            y=y,
            test_x=test_x,
            test_y=test_y,
            domain=Domain(0.0, 1.0),
            class_names=tuple(f"spot {label}" for label in range(self.classes)),
            feature_names=tuple(f"feature {column}" for column in range(SIDE**2)) if self.tabular else (),
            image_shape=None if self.tabular else (1, SIDE, SIDE),
            groups=np.arange(self.samples) % OWNERS,
            group_names=tuple(f"owner {number}" for number in range(OWNERS)),
        )

    def _draw(self, generator: np.random.Generator, samples: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        labels = np.arange(samples) % self.classes
        images = generator.uniform(0.0, 0.4, (samples, SIDE, SIDE))
        rows = 2 * (labels // 4)
        columns = 2 * (labels % 4)
        for shift in ((0, 0), (0, 1), (1, 0), (1, 1)):
            images[np.arange(samples), rows + shift[0], columns + shift[1]] += 0.5
        return images.reshape(samples, -1).astype(np.float32), labels


SPOTS = "conformance-spots"


def registry_with(plugins: dict[str, type[Plugin]]) -> Registry:
    """Return a registry with plugins under test.

    It also has what is installed, and the data of this module.
    """
    return Registry({SPOTS: Spots, **plugins})


def small_config(**changes: Any) -> dict[str, Any]:
    """Return the config of a short run.

    It has three rounds of ten clients. Batches do not divide the samples evenly.
    """
    config: dict[str, Any] = {
        "name": "conformance",
        "rounds": 3,
        "device": "cpu",
        "dataset": {"type": SPOTS, "scaling": "none"},
        "partition": {"type": "iid", "clients": 10},
        "model": {"type": "softmax", "features": {"type": "unit-ball", "radius": 4.0}},
        "training": {"learning_rate": 0.5, "epochs": 1, "batch_size": 20},
        "server": {"clip_norm": 8.0, "noise_std": 0.01},
        "votes": {"models": 200, "selection_models": 40},
        "evaluation": {"every": 0},
        "storage": {"figures": [], "checkpoint_seconds": 0},
        "certificates": ["pathwise-linear"],
    }
    return config | changes


@singledispatch
def strengthen_votes(votes: Votes) -> Votes:
    """Return votes with a larger majority for the same first class."""
    raise NotImplementedError(type(votes).__name__)


@strengthen_votes.register
def _(votes: LogitVotes) -> Votes:
    return replace(votes, logits=2.0 * votes.logits)


@strengthen_votes.register
def _(votes: CountVotes) -> Votes:
    chosen = votes.selection if votes.request.selection_models else votes.counts
    winners = np.eye(chosen.shape[1], dtype=np.int64)[chosen.argmax(1)]
    totals = (winners * part.sum(1, keepdims=True) for part in (votes.counts, votes.selection))
    return replace(votes, **dict(zip(("counts", "selection"), totals, strict=True)))


@strengthen_votes.register
def _(votes: ExactVotes) -> Votes:
    rest = 2.0 * votes.log_rest
    return replace(votes, log_rest=rest, log_p_b=2.0 * votes.log_p_b, log_p_a=np.log1p(-np.exp(rest)))


@strengthen_votes.register
def _(votes: GroupVotes) -> Votes:
    classes = np.arange(1 + votes.ballots.max())
    winners = (votes.ballots[:, :, None] == classes).sum(axis=1).argmax(axis=1)
    return replace(votes, ballots=np.zeros_like(votes.ballots) + winners[:, None], gaps=2.0 * votes.gaps)


@strengthen_votes.register
def _(votes: GroupRankings) -> Votes:
    winners = formulas.condorcet_vote(votes.ranks).winner[:, None, None]
    own = np.take_along_axis(votes.ranks, winners, axis=2)
    behind = (votes.ranks + np.less(votes.ranks, own)).astype(np.uint16)  # classes before it move one place back
    np.put_along_axis(behind, winners, np.uint16(0), axis=2)
    return replace(votes, ballots=behind.argmin(axis=2), gaps=2.0 * votes.gaps, ranks=behind)


@singledispatch
def tie_votes(votes: Votes) -> Votes:
    """Return votes that are divided equally among all classes."""
    raise NotImplementedError(type(votes).__name__)


@tie_votes.register
def _(votes: LogitVotes) -> Votes:
    return replace(votes, logits=np.zeros_like(votes.logits))


@tie_votes.register
def _(votes: CountVotes) -> Votes:
    even = {
        name: np.zeros_like(part) + part.sum(1, keepdims=True) // part.shape[1]
        for name, part in (("counts", votes.counts), ("selection", votes.selection))
    }
    return replace(votes, **even)


@tie_votes.register
def _(votes: ExactVotes) -> Votes:
    half = np.full_like(votes.log_p_a, math.log(0.5))
    return replace(votes, log_p_a=half, log_p_b=half, log_rest=half)


@tie_votes.register
def _(votes: GroupVotes) -> Votes:
    turns = np.arange(votes.ballots.shape[1]) % (1 + votes.labels.max())
    return replace(votes, ballots=np.zeros_like(votes.ballots) + turns, gaps=np.zeros_like(votes.gaps))


@tie_votes.register
def _(votes: GroupRankings) -> Votes:
    groups, classes = votes.ranks.shape[1:]
    turned = (np.arange(classes) - np.arange(groups)[:, None]) % classes  # every group begins with the next class
    ranks = np.broadcast_to(turned.astype(np.uint16), votes.ranks.shape)
    return replace(votes, ballots=ranks.argmin(axis=2), gaps=np.zeros_like(votes.gaps), ranks=ranks)


def alter_ledgers(ledger: Ledger) -> dict[str, Ledger]:
    """Return ledgers that break single assumptions, and one that breaks all."""
    return {
        "an ordinary run": ledger,
        "an unknown model": with_facts(ledger, model_facts=ModelFacts(linear=False, convex=False, bias=True)),
        "unbounded inputs": with_facts(ledger, input_norm_bound=math.inf, feature_norm_bound=math.inf),
        "a map without a Lipschitz constant": with_facts(ledger, feature_lipschitz=None),
        "weights that depend on all updates": with_rounds(ledger, depends="all"),
        "rejected rounds": with_rounds(with_facts(ledger, rejects=True), accepted=False),
        "no noise": with_rounds(with_facts(ledger, test_noise_std=0.0), noise_std=0.0),
        "no models kept": with_facts(ledger, resampled=()),
        "nothing known at all": unknown_ledger(ledger),
    }


def unknown_ledger(ledger: Ledger) -> Ledger:
    """Return the ledger of a run that no proof covers."""
    blind = with_facts(
        ledger,
        model_facts=ModelFacts(linear=False, convex=False, bias=True, loss="unknown"),
        input_norm_bound=math.inf,
        feature_norm_bound=math.inf,
        feature_lipschitz=None,
        test_noise_std=0.0,
        rejects=True,
        resampled=(),
    )
    blind = with_rounds(blind, depends="all", accepted=False, noise_std=0.0, breakdown=None, carries_state=True)
    return with_columns(blind, cap=math.inf, update_bound=math.inf, residual_norm=math.inf)


def shorten_updates(ledger: Ledger, factor: float) -> Ledger:
    """Return the ledger with shorter caps, update bounds and residuals."""
    return scale_columns(ledger, cap=factor, update_bound=factor, residual_norm=factor)


def scale_columns(ledger: Ledger, **factors: float) -> Ledger:
    """Multiply some columns of the ledger."""
    return with_columns(ledger, **{name: factor * getattr(ledger.clients, name) for name, factor in factors.items()})


def with_columns(ledger: Ledger, **changes: NDArray[np.float64] | float) -> Ledger:
    """Replace columns of the ledger."""
    columns = {name: np.broadcast_to(value, (len(ledger.clients),)) for name, value in changes.items()}
    return replace(ledger, clients=ClientColumns(**(vars(ledger.clients) | columns)))


def with_facts(ledger: Ledger, **changes: Any) -> Ledger:
    """Replace static facts of the ledger."""
    return replace(ledger, facts=ledger.facts.model_copy(update=changes))


def with_rounds(ledger: Ledger, **changes: Any) -> Ledger:
    """Replace facts of every round of the ledger."""
    return replace(ledger, rounds=tuple(record.model_copy(update=changes) for record in ledger.rounds))
