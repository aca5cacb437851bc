"""Bases of the sound certificates of one model: three levels, and the update cap that the client level needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from crfl_core.extend import Certificate, Level

UPDATE_CAP: Mapping[str, Any] = {"type": "update-cap", "bound": "known"}
"""Stage that caps updates at the bound on honest ones, so that no honest client is affected."""


class CappedCertificate(Certificate):
    """Base of certificates with a client level, for which updates have to be capped."""

    levels_offered: ClassVar[tuple[Level, ...]] = ("feature", "sample", "client")

    def stages_to_add(self, cap_updates: bool | None) -> tuple[Mapping[str, Any], ...]:
        """Return the update cap if the client level is requested."""
        counts_clients = "client" in (self.levels or self.levels_offered)
        return (UPDATE_CAP,) if cap_updates or counts_clients else ()


class PathwiseCertificate(CappedCertificate):
    """Base of certificates about the run as it was, with all its noise; no round is special to them."""

    statement: ClassVar = "pathwise"

    def round_scope(self) -> Literal["any"]:
        """Return "any", because the drift of every round is known.

        The drift of the worst rounds is therefore known as well.
        """
        return "any"
