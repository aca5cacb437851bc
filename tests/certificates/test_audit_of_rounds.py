"""Assumptions about the attacked rounds, the noise in them, and where it can be drawn again."""

from __future__ import annotations

from dataclasses import replace

from crfl_certificates.tail import Tail

from crfl_core.certification import certifier as certification
from tests.certificates.audited import CERTIFICATES, LABELS, SERVER, SOUND, attacked_world, audits, refused, small


def test_an_attack_after_the_fresh_noise_begins_is_refused() -> None:
    world = attacked_world(small())
    early = certification.audit_certificate(Tail(resample_from=1), world.ledger, world.threat())
    assert early.refusal == (
        "attacked rounds: found round 2, needs within 1..1, before the noise is drawn again: "
        "set threat.rounds within 1..1, or a later resample_from"
    )
    assert not certification.audit_certificate(Tail(resample_from=3), world.ledger, world.threat()).refusal


def test_postprocess_is_about_one_round_and_its_noise() -> None:
    world = attacked_world(small(attack=LABELS | {"rounds": [2, 3]}))
    found = audits(world)
    assert refused(found) == {"postprocess"}
    assert any("one attacked round" in condition for condition in found["paper"].conditions)
    assert "set threat.rounds to one round, or use the certificate 'tail'" in found["postprocess"].refusal
    silent = attacked_world(small(server=SERVER | {"noise_std": [0.1, 0.0, 0.1, 0.1]}))
    found = audits(silent)
    assert refused(found) == {"postprocess", "paper"}
    assert "noise in the attacked round: found 0, needs above 0" in found["postprocess"].refusal


def test_rounds_that_do_not_exist_are_refused() -> None:
    world = attacked_world(small())
    found = audits(world, world.threat().model_copy(update={"rounds": (9,)}))
    assert refused(found) == SOUND | {"paper"}


def test_noise_cannot_be_drawn_again_where_the_model_was_not_kept() -> None:
    world = attacked_world(small())
    ledger = replace(world.ledger, facts=world.ledger.facts.model_copy(update={"resampled": (3,)}))
    found = {name: certification.audit_certificate(one, ledger, world.threat()) for name, one in CERTIFICATES.items()}
    assert refused(found) == {"tail", "postprocess"}
    assert "model before noise was kept: found kept are rounds 3, needs round 2" in found["tail"].refusal
