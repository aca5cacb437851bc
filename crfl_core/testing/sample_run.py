"""A small finished run that certificates are put to, and the same run again under attack."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfl_core.certification.audits import Audit, audit, levels_of
from crfl_core.errors import PluginFailure, StoreError
from crfl_core.plugin_api.attack import Attack
from crfl_core.plugin_api.base import Plugin
from crfl_core.plugin_api.certificate import Certificate, Guarantee, Level
from crfl_core.records.ledger import ClientColumns, Ledger
from crfl_core.records.threat import Threat
from crfl_core.records.votes import Votes
from crfl_core.runs.run import run
from crfl_core.testing.samples import SPOTS, Spots, small_config
from crfl_core.testing.suite import Case, CheckFailed, Skipped

THREATS: tuple[dict[str, Any], ...] = (
    {"clients": 1, "rounds": [2], "poison_ratio": 0.1},
    {"clients": 1, "rounds": [3], "poison_ratio": 0.1},
    {"clients": 1, "rounds": [3], "poison": "update"},
)
"""What a certificate is asked about: the first of these that its audit does not refuse altogether."""

GROUPS: tuple[dict[str, Any], ...] = ({"count": 10}, {"count": 10, "by": "subsets", "size": 3})
"""The groups of a run for certificates that are about them, of which the first that is not refused counts, too."""


@dataclass(frozen=True)
class Trial:
    """What became of a run of softmax regression on two classes: all that a certificate reads. Arrays are read-only.

    `threat` assumes one unknown attacker in the second or third of three rounds. A certificate about
    `groups` gets a run with ten of them.
    """

    certificate: Certificate
    ledger: Ledger
    threat: Threat
    votes: Votes
    groups: Mapping[str, Any] | None = None

    def audit(self, threat: Threat | None = None, ledger: Ledger | None = None) -> Audit:
        """The certificate's assumptions, evaluated on this run or on another ledger."""
        return audit(self.certificate, ledger or self.ledger, threat or self.threat)

    def certify(
        self, level: Level, threat: Threat | None = None, votes: Votes | None = None, ledger: Ledger | None = None
    ) -> Guarantee:
        """What the certificate says about the clean test set, of this run or of another ledger."""
        return self.certificate.certify(ledger or self.ledger, votes or self.votes, threat or self.threat, level)

    def allowed(self, threat: Threat | None = None) -> tuple[Level, ...]:
        """The levels that the audit does not refuse."""
        found = self.audit(threat)
        return tuple(level for level in found.levels if not (found.refusal or found.refusal_at(level)))

    @property
    def predictions(self) -> NDArray[np.int64]:
        """The classes that the certificate predicts, `ABSTAIN` where it is not sure."""
        return self.certify(levels_of(self.certificate)[0]).prediction

    def attacked(self, attack: Attack) -> Trial:
        """The same run, data and noise, with an attack."""
        return finished(self.certificate, self.threat.model_dump(mode="json", exclude_none=True), self.groups, attack)


Search = Callable[[Trial, Level], "NDArray[np.float64] | None"]
"""An adversarial search: for each test sample of a trial the size, in units of the level's radius, of the smallest
attack that was found to change its prediction, infinite where none was; None if nothing was tried at this level."""


def trial_of(case: Case[Certificate]) -> Trial:
    """A trial that the certificate has something to say about, if there is one."""
    *others, last = product(THREATS, GROUPS if case.plugin.groups else (None,))
    for threat, groups in others:
        with suppress(Skipped):
            trial = finished(case.plugin, threat, groups)
            if trial.allowed():
                return trial
    return finished(case.plugin, *last)


def finished(
    certificate: Certificate, threat: dict[str, Any], groups: Mapping[str, Any] | None, attack: Attack | None = None
) -> Trial:
    """A run that ends with this certificate."""
    plugins: dict[str, type[Plugin]] = {SPOTS: Spots, certificate.configured_as: type(certificate)}
    changes: dict[str, Any] = {"groups": groups} if groups else {}
    if attack is not None:
        plugins[attack.configured_as] = type(attack)
        changes["attack"] = attack.named(attack.configured_as)
    config = small_config(
        dataset={"type": SPOTS, "scaling": "none", "classes": 2, "samples": 200},
        threat=threat,
        certificates=[certificate.named(certificate.configured_as)],
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
        (question,) = result.inquiry.questions
        try:
            votes = result.votes(question.request, question.settings)["clean"]
        except StoreError as error:
            raise Skipped(
                f"it refuses a run of softmax regression with fedavg, so nobody voted: {question.audit.refusal}"
            ) from error
        ledger = result.ledger
        assumed = result.threat
    return Trial(certificate, read_only(ledger), assumed, frozen(votes), groups)


def read_only(ledger: Ledger) -> Ledger:
    """The ledger with arrays that cannot be changed."""
    return replace(
        ledger, clients=ClientColumns(**{name: shut(column) for name, column in vars(ledger.clients).items()})
    )


def frozen(votes: Votes) -> Votes:
    """The votes with arrays that cannot be changed."""
    arrays: dict[str, Any] = {name: shut(part) for name, part in vars(votes).items() if isinstance(part, np.ndarray)}
    return replace(votes, **arrays)


def shut(array: NDArray[Any]) -> NDArray[Any]:
    """A copy that cannot be changed."""
    copy = array.copy()
    copy.flags.writeable = False
    return copy
