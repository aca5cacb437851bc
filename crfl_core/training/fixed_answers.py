"""Answers of the server's steps that see no update: asked for all rounds before round 1, and the same ever after."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from torch import Tensor

from crfl_core.errors import PluginFailure
from crfl_core.plugin_loading.mutation_guard import arrays_in

if TYPE_CHECKING:
    from crfl_core.plugin_api.plugin_errors import PluginMethod
    from crfl_core.records.round import Clients, RoundFacts

Answer = TypeVar("Answer")
KEPT_NUMBERS = 2**22
"""Numbers of the answers that a group keeps: 32 MiB. Of others it keeps digests."""


class FixedAnswers:
    """Answers of one group's steps, by what they were asked: an equal question has an equal answer.

    Certificates take weights, caps and rates for functions of what the step is asked. An answer that is kept is used
    again; where there is a digest, the step is asked again, and another answer ends the run.
    """

    def __init__(self) -> None:
        self._kept: dict[bytes, Any] = {}
        self._digests: dict[bytes, bytes] = {}
        self._room = KEPT_NUMBERS

    def ask(self, who: PluginMethod, question: Clients | RoundFacts, answer: Callable[[], Answer]) -> Answer:
        """Return the answer of a step's method to a question; `answer` asks the step."""
        key = digest_of_arrays(question, f"{id(who.plugin)} {who.method}")
        if key in self._kept:
            kept: Answer = self._kept[key]
            return kept
        found = answer()
        if key not in self._digests:
            size = sum(getattr(array, "nbytes", 8) for array in arrays_in(found)) // 8
            if size <= self._room:
                self._room -= size
                self._kept[key] = found
                return found
            self._digests[key] = digest_of_arrays(found)
        if self._digests[key] != digest_of_arrays(found):
            raise PluginFailure(
                f"{who} has answered the same question differently before: its answer must follow from what it is "
                "given, so remember nothing, and draw from keyed streams"
            )
        return found


def digest_of_arrays(content: object, prefix: str = "") -> bytes:
    """Return a digest of all arrays and numbers in a container."""
    digest = hashlib.blake2b(prefix.encode(), digest_size=16)
    for leaf in arrays_in(content):
        values = leaf.detach().cpu().numpy() if isinstance(leaf, Tensor) else leaf
        if isinstance(values, np.ndarray):
            digest.update(f"{values.dtype.str}{values.shape}".encode())
            digest.update(np.ascontiguousarray(values).data)
        elif isinstance(values, int | float):
            digest.update(repr(values).encode())
    return digest.digest()
