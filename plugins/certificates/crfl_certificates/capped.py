"""What the sound certificates have in common: three levels, and a cap on updates that makes the third possible."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from crfl_core.extend import Certificate, Level

UPDATE_CAP: Mapping[str, Any] = {"type": "update-cap", "bound": "known"}
"""A cap where there is a bound on honest updates, so that no honest client notices it."""


class CappedCertificate(Certificate):
    """A certificate that counts clients, for which updates have to be capped."""

    levels_offered: ClassVar[tuple[Level, ...]] = ("feature", "sample", "client")

    def stages_to_add(self, cap_updates: bool | None) -> tuple[Mapping[str, Any], ...]:
        """Return the update cap if the client level is requested."""
        counts_clients = "client" in (self.levels or self.levels_offered)
        return (UPDATE_CAP,) if cap_updates or counts_clients else ()


class PathwiseCertificate(CappedCertificate):
    """A certificate about the run as it was, with all its noise. No round is special to it."""

    statement: ClassVar = "pathwise"

    def round_scope(self) -> Literal["any"]:
        """Return "any": the drift of every round is known, and so that of the worst ones."""
        return "any"
