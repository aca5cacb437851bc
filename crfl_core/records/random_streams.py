"""Independent random streams, one per purpose, round, client and replica.

A draw depends on the seed and on what it is for, never on what was drawn before. So the order in which
clients are trained, the number of chunks or processes, and a resume after a kill change nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

Purpose = Literal["data", "initial", "batches", "participation", "aggregation", "noise", "votes", "attack"]
PURPOSES: tuple[str, ...] = get_args(Purpose)


@dataclass(frozen=True)
class Streams:
    """All random numbers of a run, derived from one seed.

    `seeds` gives single purposes a seed of their own, for example to vary the noise while the data stay; None is one
    that is secret and not known here.
    """

    seed: int
    seeds: Mapping[str, int | None] = field(default_factory=dict)

    def generator(
        self, purpose: str, *, round_number: int = 0, client: int = 0, replica: int = 0
    ) -> np.random.Generator:
        """Return a fresh generator for one purpose.

        Equal arguments give equal draws. Other arguments give independent ones. `purpose` is one of `PURPOSES`, or one
        of them followed by "/" and a word of the caller's own, so that two users of the same purpose ("data/partition",
        "data/subset") do not share their draws.

        >>> streams = Streams(seed=7)
        >>> a = streams.generator("noise", round_number=3).integers(1000, size=4)
        >>> b = streams.generator("noise", round_number=3).integers(1000, size=4)
        >>> (a == b).all()
        np.True_
        """
        (key,) = self._keys(purpose, round_number, [client], replica)
        return np.random.Generator(np.random.SFC64(int.from_bytes(key, "little")))

    def generators(
        self, purpose: str, clients: Iterable[int], *, round_number: int = 0
    ) -> Iterator[np.random.Generator]:
        """Yield the generators of many clients in turn.

        This takes less time than one call each. Use each generator before the next is asked for.
        """
        return seed_generators(self._keys(purpose, round_number, clients, 0))

    def _keys(self, purpose: str, round_number: int, clients: Iterable[int], replica: int) -> list[bytes]:
        """Return the keys that make the seeds of some clients.

        A key is 16 bytes, hashed from all that a draw is for.
        """
        family = purpose.partition("/")[0]
        if family not in PURPOSES:
            raise ValueError(f"unknown purpose {purpose!r}: start it with one of {', '.join(PURPOSES)}")
        seed = self.seeds.get(family, self.seed)
        if seed is None:
            raise ValueError(f"the seed of {family!r} is secret: it is drawn after training")
        common = hashlib.blake2b(f"{seed}|{purpose}|{round_number}|".encode(), digest_size=16, person=b"crfl-streams")
        keys = []
        for client in clients:
            own = common.copy()
            own.update(f"{client}|{replica}".encode())
            keys.append(own.digest())
        return keys

    def only(self, family: str, group: int | None = None) -> Streams:
        """Return streams that draw for one purpose and hide the seed.

        With `group` they are those of one of several groups.

        >>> Streams(seed=7).only("aggregation").generator("attack/clients")
        Traceback (most recent call last):
        ValueError: 'attack/clients' is not drawn here: start it with 'aggregation'
        """
        return FamilyStreams(self, family, group)


class FamilyStreams(Streams):
    """The same draws as those of `whole`, of one family alone, with those of every group apart."""

    def __init__(self, whole: Streams, family: str, group: int | None) -> None:
        super().__init__(seed=0)
        object.__setattr__(self, "_family", family)
        object.__setattr__(self, "_group", group)
        object.__setattr__(self, "_draw", whole.generator)

    def generator(
        self, purpose: str, *, round_number: int = 0, client: int = 0, replica: int = 0
    ) -> np.random.Generator:
        """Return what `Streams.generator` returns, for purposes of this family."""
        family = vars(self)["_family"]
        draw = vars(self)["_draw"]
        if purpose.partition("/")[0] != family:
            raise ValueError(f"{purpose!r} is not drawn here: start it with {family!r}")
        purpose = of_group(purpose, vars(self)["_group"])
        generator: np.random.Generator = draw(purpose, round_number=round_number, client=client, replica=replica)
        return generator

    def generators(
        self, purpose: str, clients: Iterable[int], *, round_number: int = 0
    ) -> Iterator[np.random.Generator]:
        """Return what `Streams.generators` returns, for purposes of this family."""
        return (self.generator(purpose, round_number=round_number, client=client) for client in clients)


def of_group(purpose: str, group: int | None) -> str:
    """Return the purpose of a stream for one of several groups.

    `group` is None if the run has only one model.

    >>> of_group("noise", 3), of_group("noise", None)
    ('noise/group-3', 'noise')
    """
    return purpose if group is None else f"{purpose}/group-{group}"


MANY_KEYS = 16
"""Keys from which on all states are computed together, which costs as much as this many generators."""
POOL = 4
"""Words of 32 bits in the pool of a `SeedSequence`, and in a key."""
SEED = 6
"""Words of 32 bits in the seed of an `SFC64`."""
WARM_UP = 12
LEFT = np.uint32(0xCA01F9DD)
RIGHT = np.uint32(0x4973F715)
HALF = np.uint32(16)

Words = NDArray[np.uint32]


def seed_generators(keys: Sequence[bytes]) -> Iterator[np.random.Generator]:
    """Yield generators of `SFC64` seeded with these keys.

    A key is 16 bytes, read as a little-endian number. All are one generator in one state after the other: use each
    before the next is asked for.
    """
    if len(keys) < MANY_KEYS:
        yield from (np.random.Generator(np.random.SFC64(int.from_bytes(key, "little"))) for key in keys)
        return
    bits = np.random.SFC64(int.from_bytes(keys[0], "little"))
    generator = np.random.Generator(bits)
    first = bits.state
    found = sfc64_states(np.frombuffer(b"".join(keys), "<u4").reshape(-1, POOL).astype(np.uint32))
    if not np.array_equal(first["state"]["state"], found[0]):  # another NumPy than all that are known
        yield from (np.random.Generator(np.random.SFC64(int.from_bytes(key, "little"))) for key in keys)
        return
    inner = first["state"]
    for inner["state"] in found:
        bits.state = first
        yield generator


def sfc64_states(keys: Words) -> NDArray[np.uint64]:
    """Return the states of seeded `SFC64` generators, (n, 4).

    The generators are seeded with the keys, which are (n, 4), too.
    """
    pool = hash_words(keys.T, POOL_CONSTANTS[:, :POOL])
    for source in range(POOL):
        first = POOL + source * (POOL - 1)
        others = [place for place in range(POOL) if place != source]
        mixed = LEFT * pool[others] - RIGHT * hash_words(pool[source], POOL_CONSTANTS[:, first : first + POOL - 1])
        pool[others] = mixed ^ (mixed >> HALF)
    words = hash_words(pool[np.arange(SEED) % POOL], SEED_CONSTANTS).astype(np.uint64)
    a, b, c = words[::2] | (words[1::2] << np.uint64(32))
    for counter in range(1, WARM_UP + 1):
        output = a + b + np.uint64(counter)
        a = b ^ (b >> np.uint64(11))
        b = c + (c << np.uint64(3))
        c = ((c << np.uint64(24)) | (c >> np.uint64(40))) + output
    return np.stack([a, b, c, np.full_like(a, WARM_UP + 1)], axis=1)


def hash_words(words: Words, constants: Words) -> Words:
    """Hash one row of words with each pair of constants."""
    product = (words ^ constants[0, :, None]) * constants[1, :, None]
    return product ^ (product >> HALF)


def powers(first: int, factor: int, count: int) -> Words:
    """Return the powers `first factor^i` modulo 2^32.

    The first row has i = 0, ..., count - 1. The second row has the same for i + 1.
    """
    found = [first * pow(factor, exponent, 2**32) % 2**32 for exponent in range(count + 1)]
    return np.array([found[:-1], found[1:]], np.uint32)


POOL_CONSTANTS = powers(0x43B0D7E5, 0x931E8875, POOL * POOL)
SEED_CONSTANTS = powers(0x8B51F9DD, 0x58F38DED, SEED)
