"""What the tests of audits share: the certificates, a federation to be audited, and who was refused."""

from __future__ import annotations

from typing import Any

from crfl_certificates.paper import Paper
from crfl_certificates.pathwise_linear import PathwiseLinear
from crfl_certificates.pathwise_smoothed import PathwiseSmoothed
from crfl_certificates.postprocess import Postprocess
from crfl_certificates.tail import Tail

from crfl_core import Threat
from crfl_core.certification import certifier as certification
from crfl_core.certification.certifier import Audit
from crfl_core.extend import Certificate, Plugin
from crfl_core.training.steering import Steering
from tests.certificates.attackers import Submitting
from tests.certificates.federations import small as small_config
from tests.certificates.worlds import World, attacked, federation_of, honest_world, play

CERTIFICATES: dict[str, Certificate] = {
    "paper": Paper(),
    "linear": PathwiseLinear(),
    "smoothed": PathwiseSmoothed(),
    "tail": Tail(),
    "postprocess": Postprocess(),
}
SOUND = {"linear", "smoothed", "tail", "postprocess"}
PATHWISE = {"linear", "smoothed", "tail"}
LABELS = {"type": "steering", "clients": [0], "rounds": [2], "kind": "labels", "ratio": 0.5}
SERVER = {"clip_norm": 4.0, "noise_std": 0.05, "cap_updates": False}


def small(**changes: Any) -> dict[str, Any]:
    """The small federation with noise, one of its clients flipping labels in round 2."""
    return small_config(**({"server": SERVER, "attack": LABELS} | changes))


def attacked_world(config: dict[str, Any], plugins: dict[str, type[Plugin]] | None = None) -> World:
    """The world of a config; attackers that steer or submit learn about its honest twin first."""
    federation = federation_of(config, plugins)
    if isinstance(federation.config.attack, (Steering, Submitting)):
        return attacked(federation, honest_world(federation))
    return play(federation)


def audits(world: World, threat: Threat | None = None) -> dict[str, Audit]:
    """The audits of all certificates. Whatever fails says what was found, what is needed and what to do."""
    assumed = world.threat() if threat is None else threat
    found = {name: certification.audit_certificate(one, world.ledger, assumed) for name, one in CERTIFICATES.items()}
    for audit in found.values():
        for check in audit.checks:
            assert check.status != "failed" or (check.measured and check.required and check.remedy), check
    return found


def refused(found: dict[str, Audit]) -> set[str]:
    """The certificates that are refused altogether."""
    return {name for name, audit in found.items() if audit.refusal}
