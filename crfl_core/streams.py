"""Independent random streams, one per purpose, round, client and replica.

A draw depends on the seed and on what it is for, never on what was drawn before. So the order in which
clients are trained, the number of chunks or processes, and a resume after a kill change nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np

Purpose = Literal["data", "initial", "batches", "participation", "aggregation", "noise", "votes", "attack"]
PURPOSES: tuple[str, ...] = get_args(Purpose)


@dataclass(frozen=True)
class Streams:
    """All random numbers of a run, derived from one seed.

    `seeds` gives single purposes a seed of their own, for example to vary the noise while the data stay; None is one
    that is secret and not known here. `purposes` are those that whoever has these streams may draw for.
    """

    seed: int
    seeds: Mapping[str, int | None] = field(default_factory=dict)
    purposes: tuple[str, ...] = PURPOSES

    def generator(
        self, purpose: str, *, round_number: int = 0, client: int = 0, replica: int = 0
    ) -> np.random.Generator:
        """A fresh generator for one purpose; equal arguments give equal draws, different ones independent.

        `purpose` is one of `purposes`, or one of them followed by "/" and a word of the caller's own, so that
        two users of the same purpose ("data/partition", "data/subset") do not share their draws.

        >>> streams = Streams(seed=7)
        >>> a = streams.generator("noise", round_number=3).integers(1000, size=4)
        >>> b = streams.generator("noise", round_number=3).integers(1000, size=4)
        >>> (a == b).all()
        np.True_
        """
        family = purpose.partition("/")[0]
        if family not in self.purposes:
            raise ValueError(f"no draws for {purpose!r} here: start it with {' or '.join(self.purposes)}")
        seed = self.seeds.get(family, self.seed)
        if seed is None:
            raise ValueError(f"the seed of {family!r} is secret: it is drawn after training")
        key = f"{seed}|{purpose}|{round_number}|{client}|{replica}".encode()
        digest = hashlib.blake2b(key, digest_size=16, person=b"crfl-streams").digest()
        return np.random.Generator(np.random.SFC64(int.from_bytes(digest, "little")))
